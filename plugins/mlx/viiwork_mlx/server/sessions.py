"""Which tokens a session's last turn had."""

from __future__ import annotations

import threading
from array import array
from collections import OrderedDict
from collections.abc import Iterable


class Sessions:
    """Token ids by session key. Bounded: the session that was silent longest is forgotten first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ids: OrderedDict[str, array[int]] = OrderedDict()
        self._lock = threading.Lock()

    def remember(self, key: str, ids: Iterable[int]) -> None:
        packed = array("i", ids)  # 4 bytes a token instead of 40: a session may have 100,000
        with self._lock:
            self._ids[key] = packed
            self._ids.move_to_end(key)
            while len(self._ids) > self._limit:
                self._ids.popitem(last=False)

    def ids(self, key: str) -> list[int]:
        """The ids of its last turn, prompt and answer; empty for a session that is not known."""
        with self._lock:
            return list(self._ids.get(key, ()))

    def all(self) -> dict[str, list[int]]:
        """The ids of every known session's last turn, the one silent longest first."""
        with self._lock:
            return {key: list(ids) for key, ids in self._ids.items()}
