"""The HTTP API around the hot path."""
