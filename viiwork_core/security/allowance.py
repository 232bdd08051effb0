"""The daily allowance: tokens that each API key has used today, in all of the mesh. A state machine without I/O.

Every node counts what ran on its own engines and tells the others. The counts only grow within a day, so of what a node
has told before and tells now the greater one holds, also when it has left. A day begins at midnight UTC.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from viiwork_core.clock import Clock
from viiwork_core.errors import AllowanceSpent
from viiwork_core.security.keys import ApiKey

DAY_S: Final = 86_400
MAX_NODES: Final = 1024
"""Other nodes whose counts of today are kept, and keys of one that are."""

_Counts = Annotated[dict[str, Annotated[int, Meta(ge=0, le=1 << 53)]], Meta(max_length=MAX_NODES)]


class Spent(msgspec.Struct, frozen=True):
    """All that is known of one day."""

    day: Annotated[int, Meta(ge=0)]
    """Since the beginning of 1970."""

    own: _Counts
    """By key, what ran here."""

    others: Annotated[dict[str, _Counts], Meta(max_length=MAX_NODES)] = {}
    """By node and key, what ran there."""


class Allowance:
    """On one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._day = self._today()
        self._own: Counter[str] = Counter()
        self._others: dict[str, dict[str, int]] = {}
        self._all: Counter[str] = Counter()
        self.changes = 0
        """Grows with every change."""

    def _today(self) -> int:
        return int(self._clock.wall() // DAY_S)

    def _turn(self) -> int:
        """Begin anew when the day is another one."""
        today = self._today()
        if today != self._day:
            self._day = today
            self._own, self._others, self._all = Counter(), {}, Counter()
            self.changes += 1
        return today

    def spend(self, key: str, tokens: int) -> None:
        """A request of this key has used so many tokens on this node."""
        self._turn()
        if key not in self._own and len(self._own) >= MAX_NODES:
            return
        self._own[key] += tokens
        self._all[key] += tokens
        self.changes += 1

    def heard(self, node: str, day: int, tokens: Mapping[str, int]) -> None:
        """Another node tells what it has counted. Of another day than this node's it means nothing."""
        if day != self._turn() or (node not in self._others and len(self._others) >= MAX_NODES):
            return
        known = self._others.setdefault(node, {})
        for key, count in tokens.items():
            if (more := count - known.get(key, 0)) > 0:
                known[key] = count
                self._all[key] += more
                self.changes += 1

    def used(self, key: str) -> int:
        """Tokens of today, as far as this node has heard."""
        self._turn()
        return self._all[key]

    def check(self, key: ApiKey) -> None:
        """Raises AllowanceSpent, until midnight UTC, when a key has used all its tokens."""
        if not key.daily_tokens or self.used(key.name) < key.daily_tokens:
            return
        left = (self._day + 1) * DAY_S - self._clock.wall()
        raise AllowanceSpent(
            f"API key {key.name} has used its {key.daily_tokens} tokens of today",
            remedy="wait until midnight UTC",
            retry_after=max(1, math.ceil(left)),
        )

    def own(self) -> tuple[int, Mapping[str, int]]:
        """The day, and what ran here: what the others are told."""
        return self._turn(), self._own

    # Across a restart

    def spent(self) -> Spent:
        """What is to be kept."""
        return Spent(self._turn(), dict(self._own), {node: dict(known) for node, known in self._others.items()})

    def restore(self, spent: Spent) -> None:
        """Take up what was kept, if it is of today."""
        if spent.day != self._turn():
            return
        for key, count in spent.own.items():
            self.spend(key, count)
        for node, known in spent.others.items():
            self.heard(node, spent.day, known)
