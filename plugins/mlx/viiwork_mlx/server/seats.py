"""Who may generate now: as many requests as the server has slots, the others in the order in which they came."""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

WATCH_EVERY = 0.1
"""Seconds between two looks at a client that waits."""


class ClientGone(ConnectionError):
    """The client closed its connection before it had its answer."""


class Client:
    """The other end of a request's connection, looked at from any thread."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._gone = False

    def gone(self) -> bool:
        """Whether the client has closed; once True it stays so. Call it only when the request's body was read.

        A client that closes only its sending side counts as gone too.
        """
        if not self._gone:
            self._gone = self._closed()
        return self._gone

    def _closed(self) -> bool:
        try:
            # Read, not peeked at: bytes after the body mean nothing here, and would hide the end behind them.
            return not self._connection.recv(4096, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True


class Seats:
    """A counted resource with a fair queue."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.busy = 0
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @contextmanager
    def taken(self, client: Client) -> Iterator[None]:
        """Hold a seat, after waiting for one. Raises ClientGone when the client leaves before."""
        self._take(client)
        try:
            yield
        finally:
            with self._changed:
                self.busy -= 1
                self._changed.notify_all()

    def _take(self, client: Client) -> None:
        ticket = object()
        with self._changed:
            self._queue.append(ticket)
            try:
                while self._queue[0] is not ticket or self.busy >= self.count:
                    self._changed.wait(WATCH_EVERY)
                    if client.gone():
                        raise ClientGone
                self.busy += 1
            finally:
                self._queue.remove(ticket)
                self._changed.notify_all()
