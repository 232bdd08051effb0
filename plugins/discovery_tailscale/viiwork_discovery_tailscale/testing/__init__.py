"""A stand-in for tailscaled, and what the plugin is tried with."""
