"""Ports: whether a node could listen on one. Nothing is sent, and what is bound is let go at once."""

from __future__ import annotations

import socket
from typing import Final

KINDS: Final = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}


def refusal(host: str, port: int, kind: str) -> str | None:
    """Why nobody can listen there, in the system's words; None: it is free. `kind`: tcp or udp."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, KINDS[kind]) as probe:
        if kind == "tcp":
            # As the node does it: connections of a run before need not time out first.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return None
