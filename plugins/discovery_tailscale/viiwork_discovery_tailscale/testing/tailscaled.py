"""A stand-in for tailscaled: answers its LocalAPI's status over a unix socket with the documents of these tests."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

OWN = "100.64.0.1"


def machine(*ips: str, name: str = "box", os: str = "linux", online: bool = True, **more: Any) -> dict[str, Any]:
    """A peer, with the fields around those that matter."""
    return {
        "ID": "n1CNTRL",
        "PublicKey": "nodekey:00",
        "HostName": name,
        "DNSName": f"{name}.tail0.ts.net.",
        "OS": os,
        "UserID": 1,
        "TailscaleIPs": list(ips),
        "AllowedIPs": [f"{ip}/32" for ip in ips],
        "Addrs": None,
        "CurAddr": "",
        "Relay": "fra",
        "RxBytes": 0,
        "LastSeen": "2026-01-01T00:00:00Z",
        "Online": online,
        "ExitNode": False,
        "ExitNodeOption": False,
        "Active": False,
        "InNetworkMap": True,
        "CapMap": {f"https://tailscale.com/cap/{number}": None for number in range(12)},
        **more,
    }


def status(*peers: dict[str, Any], own: str = OWN, state: str = "Running", **more: Any) -> dict[str, Any]:
    """A whole document."""
    return {
        "Version": "1.90.6",
        "TUN": True,
        "BackendState": state,
        "HaveNodeKey": True,
        "AuthURL": "",
        "TailscaleIPs": [own],
        "Self": machine(own, "fd7a:115c:a1e0::1", name="me"),
        "Health": [],
        "MagicDNSSuffix": "tail0.ts.net",
        "CurrentTailnet": {"Name": "me@example.com", "MagicDNSSuffix": "tail0.ts.net", "MagicDNSEnabled": True},
        "CertDomains": None,
        "Peer": {f"nodekey:{number:04x}": peer for number, peer in enumerate(peers, 1)} or None,
        "User": {"1": {"ID": 1, "LoginName": "me@example.com"}},
        **more,
    }


def needs_login() -> dict[str, Any]:
    document = status(state="NeedsLogin", AuthURL="https://login.tailscale.com/a/hush", CurrentTailnet=None)
    return document | {"Self": machine(name="me", online=False) | {"TailscaleIPs": None}, "TailscaleIPs": None}


class Tailscaled(socketserver.ThreadingUnixStreamServer):
    """Running; `body` is what it answers."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, place: Path) -> None:
        super().__init__(str(place), _Handler)
        self.place = place
        self.code = 200
        self.asked: list[tuple[str, str]] = []
        """Path and Host of each request."""

        self.silent = False
        """It takes requests and answers nothing."""

        self.over = threading.Event()
        self.body = b""
        self.says(status())

    def says(self, document: Any) -> None:
        self.body = document if isinstance(document, bytes) else json.dumps(document).encode()

    @classmethod
    @contextmanager
    def running(cls, place: Path) -> Iterator[Tailscaled]:
        with cls(place) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
            thread.start()
            try:
                yield server
            finally:
                server.over.set()
                server.shutdown()
                thread.join()


class _Handler(BaseHTTPRequestHandler):
    server: Tailscaled

    def do_GET(self) -> None:
        self.server.asked.append((self.path, self.headers["Host"]))
        if self.server.silent:
            self.server.over.wait()
            return
        self.send_response(self.server.code)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        with suppress(BrokenPipeError):  # who is told too much hangs up
            self.wfile.write(self.server.body)

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *args: Any) -> None:
        return
