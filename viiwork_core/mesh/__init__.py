"""The other nodes: who is alive, what they can take."""
