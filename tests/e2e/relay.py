"""What stands between two nodes: passes bytes both ways, and on request damages one byte of an upload."""

from __future__ import annotations

import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from hosts import Host

UPLOAD = b"PUT /v1/kv/replicas "
DAMAGED_BYTE = 200_000
"""Counted from the start of the request: far behind its head and far before the end of any cache in these tests."""


class Relay(socketserver.ThreadingTCPServer):
    """Listens on `host` and connects from it to `target`."""

    daemon_threads = True
    request_queue_size = 16

    def __init__(self, host: Host, address: tuple[str, int], target: tuple[str, int]) -> None:
        self._host, self._target = host, target
        self._damaging = threading.Event()
        self._cut_after: int | None = None
        self.uploads = 0
        self.sizes: list[int] = []
        """Bytes of each upload, its head included."""

        self.damaged = 0
        with host.inside():
            super().__init__(address, socketserver.BaseRequestHandler)

    @contextmanager
    def running(self) -> Iterator[Relay]:
        thread = threading.Thread(target=self.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield self
        finally:
            self.shutdown()
            thread.join()
            self.server_close()

    @contextmanager
    def damaging(self) -> Iterator[None]:
        """Uploads that begin in the block arrive with one byte changed."""
        self._damaging.set()
        try:
            yield
        finally:
            self._damaging.clear()

    @contextmanager
    def cutting(self, after: int) -> Iterator[None]:
        """The next upload that begins in the block breaks off after so many bytes."""
        self._cut_after = after
        try:
            yield
        finally:
            self._cut_after = None

    def cuts(self, size: int) -> bool:
        """Whether an upload of which so much has come is to break off now."""
        if self._cut_after is None or size < self._cut_after:
            return False
        self._cut_after = None
        return True

    def finish_request(self, request: Any, client_address: Any) -> None:
        """Each direction has a thread: one that stalls must not hold up the other."""
        with suppress(OSError), self._host.connect(*self._target) as there:
            back = threading.Thread(target=_pump, args=(there, request, bytes), daemon=True)
            back.start()
            _pump(request, there, _Damage(self).passed)
            back.join()


def _pump(source: socket.socket, target: socket.socket, passed: Callable[[bytes], bytes]) -> None:
    """Pass on what comes until either side closes, and then close both."""
    with suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(passed(data))
    for one in (source, target):
        with suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)


class _Damage:
    """One direction of one connection, on which a request begins with a new piece: clients await answers."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._position: int | None = None
        """In the upload that is to be damaged."""

        self._counts = False
        """An upload has begun on this connection, which then carries nothing else."""

    def passed(self, data: bytes) -> bytes:
        if data.startswith(UPLOAD):
            self._relay.uploads += 1
            self._relay.sizes.append(0)
            self._counts = True
            self._position = 0 if self._relay._damaging.is_set() else None
        if self._counts:
            self._relay.sizes[-1] += len(data)
            if self._relay.cuts(self._relay.sizes[-1]):
                raise ConnectionAbortedError
        if self._position is None:
            return data
        at, self._position = DAMAGED_BYTE - self._position, self._position + len(data)
        if not 0 <= at < len(data):
            return data
        self._relay.damaged += 1
        return data[:at] + bytes((data[at] ^ 0xFF,)) + data[at + 1 :]
