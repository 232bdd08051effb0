"""The double's queue: who came first is served first."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager


class Fifo:
    """Lets threads through in the order in which they came, so many at a time."""

    def __init__(self, places: int = 1) -> None:
        self._changed = threading.Condition()
        self._places = places
        self._waiting: deque[object] = deque()
        self._served = 0

    @property
    def waiting(self) -> int:
        """How many wait behind those that are served."""
        return len(self._waiting)

    @property
    def served(self) -> int:
        """How many are served now."""
        return self._served

    @property
    def busy(self) -> bool:
        return self._served > 0 or bool(self._waiting)

    @contextmanager
    def turn(self) -> Iterator[None]:
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            self._changed.wait_for(lambda: self._waiting[0] is ticket and self._served < self._places)
            self._waiting.popleft()
            self._served += 1
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._served -= 1
                self._changed.notify_all()
