"""Choosing a host: candidates, ranking, queue."""
