"""The agenda: what happens when, in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from itertools import count


class Agenda:
    """Runs actions in the order of their times. It is the clock of everything in the simulation."""

    def __init__(self) -> None:
        self._now = 0.0
        self._order = count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def monotonic(self) -> float:
        """Seconds since the start."""
        return self._now

    def wall(self) -> float:
        """The same: nothing here asks for the date."""
        return self._now

    def after(self, delay: float, action: Callable[[], None]) -> None:
        """Run `action` in `delay` seconds. Those of one time run in the order in which they were noted."""
        heapq.heappush(self._due, (self._now + max(0.0, delay), next(self._order), action))

    def run(self, until: float) -> None:
        """Run everything that is due before `until`, also what is noted meanwhile."""
        while self._due and self._due[0][0] < until:
            self._now, _, action = heapq.heappop(self._due)
            action()
        self._now = until
