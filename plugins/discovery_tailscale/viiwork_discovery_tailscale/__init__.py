"""Finds viiwork nodes through Tailscale."""
