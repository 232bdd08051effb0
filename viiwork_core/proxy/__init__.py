"""The hot path: from a client's request to an engine's or a peer's answer."""
