"""A table that all nodes of a mesh have: names, and what was written to them. Values only: no I/O, no clock.

What is kept of a name are its newest writes, a few. The greatest of them counts, the others are the name's history.
Two tables are merged by uniting these sets and cutting them to the same size again. So it does not matter in which
order, how often and by way of whom writes arrive: nodes that have heard of the same writes have the same table.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Annotated, ClassVar, Final, Generic, Protocol, Self, TypeVar

import msgspec
from msgspec import Meta

MAX_VERSION: Final = 1 << 53
"""What every JSON reader can count to."""

Version = Annotated[int, Meta(ge=1, le=MAX_VERSION)]
Author = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,253}\Z")]
Milliseconds = Annotated[int, Meta(ge=0, le=MAX_VERSION)]


class Kept(Protocol):
    """One write to a name: a frozen msgspec struct. Raises ValueError for one that makes no sense, when made and when
    read."""

    @property
    def ver(self) -> int:
        """From 1; each write to a name has one more than that before it."""
        ...

    @property
    def by(self) -> str:
        """The node that took the write."""
        ...

    @property
    def deleted(self) -> bool:
        """Whether the name means nothing from here on."""
        ...

    @property
    def rank(self) -> tuple[object, ...]:
        """What merging compares: version, then author. The rest only tells apart what should not have met: two writes
        of one author under one version, as after the loss of its file."""
        ...


W = TypeVar("W", bound=Kept)


@dataclass(frozen=True)
class Table(Generic[W]):
    """All names at one moment. Every change makes a new one."""

    HISTORY: ClassVar[int]
    """Earlier writes of a name that are kept."""

    MAX_NAMES: ClassVar[int]
    """Names, deleted ones too. Of two tables that have more together, the last ones by name are left out."""

    TOMBSTONE_HOURS: ClassVar[int | None]
    """How long a deleted name is remembered, so that who missed the deletion does not bring it back; None: for ever."""

    entries: Mapping[str, tuple[W, ...]] = field(default_factory=dict)
    """Each name's writes, the greatest first: what holds, and the history. None is empty."""

    ages: Mapping[str, int] = field(default_factory=dict)
    """Of deleted names: hours of a node's running time since then, the longest that is known of. 0 is left out."""

    @classmethod
    def entry(cls, *writes: W) -> tuple[W, ...]:
        """An entry of these writes, which may be out of order, doubled or too many."""
        return tuple(sorted(set(writes), key=lambda one: one.rank, reverse=True)[: cls.HISTORY + 1])

    @cached_property
    def live(self) -> dict[str, W]:
        """What holds for each name that is not deleted, by name in order."""
        return {name: self.entries[name][0] for name in sorted(self.entries) if not self.entries[name][0].deleted}

    @cached_property
    def digest(self) -> str:
        """32 hex characters; equal digests mean equal entries, histories included."""
        text = msgspec.json.encode([(name, self.entries[name]) for name in sorted(self.entries)])
        return hashlib.blake2b(text, digest_size=16).hexdigest()

    def merged(self, other: Self) -> Self:
        """Both tables in one. Commutative, associative and idempotent."""
        names = islice(sorted(self.entries.keys() | other.entries.keys()), self.MAX_NAMES)
        entries = {name: self.entry(*self.entries.get(name, ()), *other.entries.get(name, ())) for name in names}
        ages = {name: _age(name, found[0], self, other) for name, found in entries.items() if found[0].deleted}
        return type(self)(entries, {name: age for name, age in ages.items() if age})

    def written(self, name: str, write: W) -> Self:
        """The table after a write of this node's."""
        return self.merged(type(self)({name: (write,)}))

    def older(self, hours: int = 1) -> Self:
        """The table after so many hours, without what has been deleted for too long."""
        if self.TOMBSTONE_HOURS is None:
            return self
        deleted = [name for name, found in self.entries.items() if found[0].deleted]
        ages = {name: self.ages.get(name, 0) + hours for name in deleted}
        gone = {name for name, age in ages.items() if age >= self.TOMBSTONE_HOURS}
        entries = {name: found for name, found in self.entries.items() if name not in gone}
        return type(self)(entries, {name: age for name, age in ages.items() if name not in gone})


def _age(name: str, head: W, *tables: Table[W]) -> int:
    """How long ago the deletion `head` was, by the table that has known of it longest."""
    return max(table.ages.get(name, 0) for table in tables if table.entries.get(name, (None,))[0] == head)


@dataclass(frozen=True, slots=True)
class Change(Generic[W]):
    """What became of one name."""

    name: str
    now: W | None
    """None: the name is forgotten."""

    changed: bool
    """Whether something else holds now; False: only its history differs."""

    lost: W | None = None
    """A write of the same version, made elsewhere at the same time, that gave way and is now first in the history."""


def changes(old: Table[W], new: Table[W]) -> Iterator[Change[W]]:
    """What has become of each name that differs."""
    for name in sorted(old.entries.keys() | new.entries.keys()):
        before, after = old.entries.get(name, ()), new.entries.get(name, ())
        if before == after:
            continue
        now, second = (*after, None, None)[:2]
        both_known = now in before and second in before
        lost = second if now and second and now.ver == second.ver and not both_known else None
        yield Change(name, now, before[:1] != after[:1], lost)
