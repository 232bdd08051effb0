"""Aliases: names that the whole mesh knows models by. Values only: nothing here does I/O or reads a clock.

What is kept of a name are its newest writes, 11 at most. The greatest of them counts, the others are the name's
history. Two tables are merged by uniting these sets and cutting them to the same size again. So it does not matter in
which order, how often and by way of whom writes arrive: nodes that have heard of the same writes have the same table.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Annotated, Final

import msgspec
from msgspec import Meta

MAX_LIVE: Final = 256
"""Names that stand for something, as far as a write of this node's may bring them."""

MAX_NAMES: Final = 1024
"""Names in a table, deleted ones too. Of two tables that have more together, the last ones by name are left out."""

HISTORY: Final = 10
"""Earlier writes of a name that are kept."""

MAX_FALLBACKS: Final = 8
MAX_VERSION: Final = 1 << 53
"""What every JSON reader can count to."""

MAX_BYTES: Final = 2048
"""All model names of one write together."""

TOMBSTONE_HOURS: Final = 30 * 24
"""How long a deleted name is remembered, so that who missed the deletion does not bring it back."""

NAME: Final = re.compile(r"(?!\.+\Z)[A-Za-z0-9._-]{1,64}")

AliasName = Annotated[str, Meta(pattern=r"^(?!\.+\Z)[A-Za-z0-9._-]{1,64}\Z")]
ModelName = Annotated[str, Meta(min_length=1, max_length=256, pattern=r"^[^\s\x00-\x1f\x7f]+\Z")]
_Author = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._-]{1,253}\Z")]
_Target = Annotated[str, Meta(max_length=256, pattern=r"^[^\s\x00-\x1f\x7f]*\Z")]
_Number = Annotated[int, Meta(ge=0, le=MAX_VERSION)]


class Write(msgspec.Struct, frozen=True, omit_defaults=True):
    """One write to a name. Raises ValueError for one that makes no sense, when made and when read."""

    ver: Annotated[int, Meta(ge=1, le=MAX_VERSION)]
    by: _Author
    """The node that took the write."""

    ts: _Number = 0
    """Unix milliseconds at the author, for people; never compared."""

    target: _Target = ""
    """The model; "" when deleted."""

    fallbacks: Annotated[tuple[ModelName, ...], Meta(max_length=MAX_FALLBACKS)] = ()
    """What is meant instead, in this order, while the target is not served."""

    deleted: bool = False

    def __post_init__(self) -> None:
        if self.deleted and self.models:
            raise ValueError("a deleted alias has no target")
        if not self.deleted and not self.target:
            raise ValueError("an alias needs a target")
        if len(set(self.models)) != len(self.models):
            raise ValueError("a model is there twice")
        if sum(len(model.encode()) for model in self.models) > MAX_BYTES:
            raise ValueError(f"the model names have over {MAX_BYTES} bytes together")

    @property
    def models(self) -> tuple[str, ...]:
        """Target and fallbacks."""
        return (self.target, *self.fallbacks) if self.target else self.fallbacks

    @property
    def rank(self) -> tuple[object, ...]:
        """What merging compares: version, then author. The rest only tells apart what should not have met: two writes
        of one author under one version, as after the loss of its file."""
        return (self.ver, self.by, self.deleted, self.target, self.fallbacks, self.ts)


Entry = tuple[Write, ...]
"""A name's writes, the greatest first: what holds, and the history. Never empty."""


def entry(*writes: Write) -> Entry:
    """An entry of these writes, which may be out of order, doubled or too many."""
    return tuple(sorted(set(writes), key=lambda one: one.rank, reverse=True)[: HISTORY + 1])


@dataclass(frozen=True)
class AliasTable:
    """All names at one moment. Every change makes a new one."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    ages: Mapping[str, int] = field(default_factory=dict)
    """Of deleted names: hours of a node's running time since then, the longest that is known of. 0 is left out."""

    @cached_property
    def live(self) -> dict[str, Write]:
        """What holds for each name that stands for something, by name in order."""
        return {name: self.entries[name][0] for name in sorted(self.entries) if not self.entries[name][0].deleted}

    @cached_property
    def digest(self) -> str:
        """32 hex characters; equal digests mean equal entries, histories included."""
        text = msgspec.json.encode([(name, self.entries[name]) for name in sorted(self.entries)])
        return hashlib.blake2b(text, digest_size=16).hexdigest()

    def merged(self, other: AliasTable) -> AliasTable:
        """Both tables in one. Commutative, associative and idempotent."""
        names = islice(sorted(self.entries.keys() | other.entries.keys()), MAX_NAMES)
        entries = {name: entry(*self.entries.get(name, ()), *other.entries.get(name, ())) for name in names}
        ages = {name: _age(name, found[0], self, other) for name, found in entries.items() if found[0].deleted}
        return AliasTable(entries, {name: age for name, age in ages.items() if age})

    def written(self, name: str, write: Write) -> AliasTable:
        """The table after a write of this node's."""
        return self.merged(AliasTable({name: (write,)}))

    def older(self, hours: int = 1) -> AliasTable:
        """The table after so many hours, without what has been deleted for too long."""
        deleted = [name for name, found in self.entries.items() if found[0].deleted]
        ages = {name: self.ages.get(name, 0) + hours for name in deleted}
        gone = {name for name, age in ages.items() if age >= TOMBSTONE_HOURS}
        entries = {name: found for name, found in self.entries.items() if name not in gone}
        return AliasTable(entries, {name: age for name, age in ages.items() if name not in gone})


def _age(name: str, head: Write, *tables: AliasTable) -> int:
    """How long ago the deletion `head` was, by the table that has known of it longest."""
    return max(table.ages.get(name, 0) for table in tables if table.entries.get(name, (None,))[0] == head)


@dataclass(frozen=True, slots=True)
class Change:
    """What became of one name."""

    name: str
    now: Write | None
    """None: the name is forgotten."""

    changed: bool
    """Whether something else holds now; False: only its history differs."""

    lost: Write | None = None
    """A write of the same version, made elsewhere at the same time, that gave way and is now first in the history."""


def changes(old: AliasTable, new: AliasTable) -> Iterator[Change]:
    """What has become of each name that differs."""
    for name in sorted(old.entries.keys() | new.entries.keys()):
        before, after = old.entries.get(name, ()), new.entries.get(name, ())
        if before == after:
            continue
        now, second = (*after, None, None)[:2]
        both_known = now in before and second in before
        lost = second if now and second and now.ver == second.ver and not both_known else None
        yield Change(name, now, before[:1] != after[:1], lost)
