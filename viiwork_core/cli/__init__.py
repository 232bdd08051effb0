"""The viiwork command."""
