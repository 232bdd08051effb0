"""The daily allowance: tokens that each API key has used today, in all of the mesh. A state machine without I/O.

Every node counts what ran on its own engines and tells the others. The counts only grow within a day, so of what a node
has told before and tells now the greater one holds, also when it has left. A day begins at midnight UTC.
"""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from viiwork_core.clock import Clock
from viiwork_core.errors import AllowanceSpent
from viiwork_core.security.keys import ApiKey

DAY_S: Final = 86_400
MAX_NODES: Final = 1024
"""Other nodes whose counts of a day are kept, and keys of one that are."""

MAX_DAYS: Final = 3
MAX_TOKENS: Final = 1 << 50
"""Of one key on one node and day: over the largest allowance there may be."""

_Counts = Annotated[dict[str, Annotated[int, Meta(ge=0, le=MAX_TOKENS)]], Meta(max_length=MAX_NODES)]


class Spent(msgspec.Struct, frozen=True, omit_defaults=True):
    """All that is known of one day, and of some before it."""

    day: Annotated[int, Meta(ge=0)]
    """Since the beginning of 1970."""

    own: _Counts
    """By key, what ran here."""

    others: Annotated[dict[str, _Counts], Meta(max_length=MAX_NODES)] = {}
    """By node and key, what ran there."""

    past: Annotated[tuple[Spent, ...], Meta(max_length=MAX_DAYS)] = ()
    """Days that were left, the last one last."""


class _Day:
    """What was used on one day."""

    def __init__(self) -> None:
        self.own: Counter[str] = Counter()
        self.others: dict[str, dict[str, int]] = {}
        self.all: Counter[str] = Counter()

    def spend(self, key: str, tokens: int) -> None:
        if key not in self.own and len(self.own) >= MAX_NODES:
            return
        # Other nodes refuse a report with a figure that cannot be.
        more = min(max(tokens, 0), MAX_TOKENS - self.own[key])
        self.own[key] += more
        self.all[key] += more

    def heard(self, node: str, tokens: Mapping[str, int]) -> bool:
        """Whether there is news."""
        if node not in self.others and len(self.others) >= MAX_NODES:
            return False
        known, before = self.others.setdefault(node, {}), self.all.total()
        for key, count in tokens.items():
            if (more := count - known.get(key, 0)) > 0:
                known[key] = count
                self.all[key] += more
        return self.all.total() != before


class Allowance:
    """On one thread.

    Clocks are set, also back: a machine without one of its own begins in another year and is told the date later. So a
    day that was left is kept for a while, and goes on where it was when it comes again.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._days: OrderedDict[int, _Day] = OrderedDict()
        self.changes = 0
        """Grows with every change."""

    def _today(self) -> int:
        return int(self._clock.wall() // DAY_S)

    def _of(self, day: int) -> _Day:
        """That day, which is the last to be forgotten now."""
        found = self._days.get(day)
        if found is None:
            found = self._days[day] = _Day()
            self.changes += 1
        if next(reversed(self._days)) != day:
            self._days.move_to_end(day)
            self.changes += 1
        while len(self._days) > MAX_DAYS:
            self._days.popitem(last=False)
        return found

    def spend(self, key: str, tokens: int) -> None:
        """A request of this key has used so many tokens on this node; fewer than none count as none."""
        self._of(self._today()).spend(key, tokens)
        self.changes += 1

    def heard(self, node: str, day: int, tokens: Mapping[str, int]) -> None:
        """Another node tells what it has counted. Of another day than this node's it means nothing."""
        if day == self._today() and self._of(day).heard(node, tokens):
            self.changes += 1

    def used(self, key: str) -> int:
        """Tokens of today, as far as this node has heard."""
        return self._of(self._today()).all[key]

    def check(self, key: ApiKey) -> None:
        """Raises AllowanceSpent, until midnight UTC, when a key has used all its tokens."""
        if not key.daily_tokens or self.used(key.name) < key.daily_tokens:
            return
        left = (self._today() + 1) * DAY_S - self._clock.wall()
        raise AllowanceSpent(
            f"API key {key.name} has used its {key.daily_tokens} tokens of today",
            remedy="wait until midnight UTC",
            retry_after=max(1, math.ceil(left)),
        )

    def own(self) -> tuple[int, Mapping[str, int]]:
        """The day, and what ran here: what the others are told."""
        today = self._today()
        return today, self._of(today).own

    # Across a restart

    def spent(self) -> Spent:
        """What is to be kept: today, and the days before it that are."""
        self._of(self._today())
        *past, today = (
            Spent(number, dict(day.own), {node: dict(known) for node, known in day.others.items()})
            for number, day in self._days.items()
        )
        return replace(today, past=tuple(past))

    def restore(self, spent: Spent) -> None:
        """Take up what was kept. What is not of today waits for its day."""
        for one in (*spent.past, spent):
            day = self._of(one.day)
            for key, count in one.own.items():
                day.spend(key, count)
            for node, known in one.others.items():
                day.heard(node, known)
        self.changes += 1
