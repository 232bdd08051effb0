"""The listening socket of a backend."""

# mypy: allow-untyped-calls

from __future__ import annotations

import argparse
import socket
import socketserver
from http.server import ThreadingHTTPServer
from typing import Any

from viiwork_mlx.server.backend import Backend
from viiwork_mlx.server.handler import Handler


class Listener(ThreadingHTTPServer):
    """The socket listens first, then the model loads: /health says how far it is."""

    request_queue_size = 128

    def __init__(self, address: tuple[str, int], own: argparse.Namespace, theirs: argparse.Namespace) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, Handler)
        self.backend = Backend(own, theirs, ended=self.shutdown)

    def server_bind(self) -> None:
        # http.server's looks the host's name up in the DNS, which may take seconds.
        socketserver.TCPServer.server_bind(self)

    def finish_request(self, request: Any, client_address: Any) -> None:
        Handler(self.backend, request, client_address, self)
