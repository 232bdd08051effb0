"""Caches that move with their session: files, transfer, replicas."""
