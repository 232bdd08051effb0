"""Dialling: when an address that never answered is tried again. Less and less often, but never much later."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from viiwork_core.clock import Clock

REDIALS_AT_ONCE: Final = 4
"""Places where members were that are dialled at once, beside what discovery sees. Each may have been switched off, and
takes a thread for five seconds then."""

MAX_RECORDS: Final = 32_768
"""Addresses that are remembered. Beyond, all are forgotten, which costs a few vain dials."""


@dataclass(slots=True)
class _Record:
    """What is known of an address that was dialled, or that a member had."""

    failures: int = 0
    due: float = 0.0
    answered: bool = False


class Dialling:
    """What is known of addresses. One that has answered is due at every look from then on. On one event loop."""

    def __init__(self, clock: Clock, *, first_s: float, longest_s: float) -> None:
        """`first_s`: the wait after a first failure, doubled by each further one in a row up to `longest_s`."""
        self._clock = clock
        self._first_s, self._longest_s = first_s, longest_s
        self._records: dict[str, _Record] = {}

    def is_due(self, address: str) -> bool:
        """Whether to try it now."""
        record = self._records.get(address)
        return record is None or record.due <= self._clock.monotonic()

    def has_answered(self, address: str) -> bool:
        """Whether it ever did."""
        record = self._records.get(address)
        return record is not None and record.answered

    def order(self, address: str) -> tuple[int, float]:
        """What addresses that are due are sorted by: the one with the fewest failures comes first."""
        record = self._records.get(address)
        return (record.failures, record.due) if record else (0, 0.0)

    def note(self, address: str, *, answered: bool) -> None:
        """Record that the address was tried, or that it is a member's (`answered`)."""
        if len(self._records) >= MAX_RECORDS:
            self._records.clear()
        record = self._records.setdefault(address, _Record())
        if answered:
            record.failures, record.due, record.answered = 0, 0.0, True
        elif not record.answered:
            wait = min(self._longest_s, self._first_s * 2 ** min(record.failures, 20))
            record.failures, record.due = record.failures + 1, self._clock.monotonic() + wait

    def keep(self, addresses: Iterable[str]) -> None:
        """What is not seen any more is forgotten, and tried at once when it is seen again."""
        kept = set(addresses)
        self._records = {address: record for address, record in self._records.items() if address in kept}
