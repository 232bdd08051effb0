"""This machine's engines: processes, health, slots."""
