"""Dialling: when an address that never answered is tried again. Less and less often, but never much later."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from viiwork_core.clock import Clock

LONGEST_S: Final = 300.0
"""A node that comes up late and has nobody to look for itself is found within this time."""


class Dialling:
    """What is known of addresses. One that has answered is tried at every look from then on. On one event loop."""

    def __init__(self, clock: Clock, first_s: float) -> None:
        """`first_s`: the wait after a second failure in a row, doubled by each further one."""
        self._clock = clock
        self._first_s = first_s
        self._answered: set[str] = set()
        self._failures: dict[str, int] = {}
        self._due: dict[str, float] = {}

    def is_due(self, address: str) -> bool:
        """Whether to try it now."""
        return self._clock.monotonic() >= self._due.get(address, 0.0)

    def note(self, address: str, *, answered: bool) -> None:
        """It was tried."""
        if answered:
            self._answered.add(address)
            self._failures.pop(address, None)
            self._due.pop(address, None)
        elif address not in self._answered:
            failures = self._failures[address] = self._failures.get(address, 0) + 1
            wait = self._first_s * 2 ** min(failures - 2, 20) if failures > 1 else 0.0
            self._due[address] = self._clock.monotonic() + min(LONGEST_S, wait)

    def keep(self, addresses: Iterable[str]) -> None:
        """What is not seen any more is forgotten, and tried at once when it is seen again."""
        kept = set(addresses)
        self._answered &= kept
        self._failures = {address: count for address, count in self._failures.items() if address in kept}
        self._due = {address: due for address, due in self._due.items() if address in kept}
