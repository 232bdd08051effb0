"""A table as this node knows it now: local writes, what comes from members, and the disk in between."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, Final, Generic

from viiwork_core.atomic_file import save_then
from viiwork_core.clock import Clock
from viiwork_core.errors import NotFound, ViiworkError
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.table import MAX_VERSION, Change, Table, W, changes
from viiwork_core.mesh.table_store import TableStore

DIGESTS: Final = 1024
"""Digests of earlier tables, this node's and members', that are remembered."""

_CONTAINED: Final = -1


class Book(ABC, Generic[W]):
    """On the data loop. A write is on disk before anybody sees it."""

    noun: ClassVar[str]
    """What its names are, in messages."""

    refusal: ClassVar[type[ViiworkError]]
    """What is raised for a write that cannot be."""

    def __init__(self, store: TableStore[W], *, node: str, clock: Clock) -> None:
        self.text = store.text
        self._store = store
        self._node = node
        self._clock = clock
        self._turn = asyncio.Lock()
        """Held by whoever writes."""

        self._table: Table[W] = self.text.table()
        self._generation = 0
        self._changed: dict[str, int] = {}
        self._digests: OrderedDict[str, int] = OrderedDict()
        self._partly: OrderedDict[str, None] = OrderedDict()

    async def open(self) -> None:
        """Read the file. Raises ConfigError."""
        self._table = await asyncio.to_thread(self._store.load)
        self._remember(self.text.table().digest, _CONTAINED)
        self._remember(self._table.digest, self._generation)

    @property
    def table(self) -> Table[W]:
        return self._table

    def entry(self, name: str) -> tuple[W, ...]:
        """A name's writes, deleted or not. Raises NotFound."""
        found = self._table.entries.get(name)
        if found is None:
            raise self._unknown(name)
        return found

    @abstractmethod
    def _unknown(self, name: str) -> NotFound:
        """There is no such name."""

    @abstractmethod
    def _told(self, change: Change[W]) -> None:
        """Log a change, and pass it on."""

    def _head(self, name: str) -> W | None:
        found = self._table.entries.get(name)
        return found[0] if found else None

    def _now(self) -> int:
        """Unix milliseconds, for a write."""
        return max(0, int(self._clock.wall() * 1000))

    def _stamp(self, name: str) -> tuple[int, str, int]:
        """Version, author and time of the next write to a name. Raises `refusal` when no version is left."""
        head = self._head(name)
        if head is not None and head.ver >= MAX_VERSION:
            raise self.refusal(f"the versions of {self.noun} {name} are used up", remedy="choose another name")
        return (head.ver + 1 if head else 1), self._node, self._now()

    async def _write(self, name: str, write: W) -> None:
        await self._replace(self._table.written(name, write))

    async def merge(self, other: Table[W], *digests: str) -> None:
        """Take in a member's table, or part of it. `digests`: what that member's whole table had for a digest, if all
        of it is in here now. Raises ViiworkError when it cannot be written to the disk."""
        async with self._turn:
            await self._replace(self._table.merged(other))
            for digest in digests:
                self._remember(digest, _CONTAINED)

    def contains(self, digest: str) -> bool:
        """Whether a member's table with this digest has nothing that this node does not have, or has had."""
        return digest in self._digests

    def understands(self, digest: str) -> bool:
        """Whether, besides, all of that table could be read here."""
        return self.contains(digest) and digest not in self._partly

    def note_refused(self, *digests: str) -> None:
        """A member's table with these digests has something that cannot be read here, as of a later version."""
        self._partly.update(dict.fromkeys(digests))
        while len(self._partly) > DIGESTS:
            self._partly.popitem(last=False)

    def reached(self, name: str, digest: str | None) -> bool:
        """Whether a member whose table has this digest has what this node knows of a name."""
        return digest is not None and self._digests.get(digest, _CONTAINED) >= self._changed.get(name, 0)

    def having(self, name: str, members: Iterable[Member], digests: Mapping[str, str | None]) -> dict[str, Any]:
        """How many of the members that are alive, this node among them, have what is known here of a name.

        `digests`: by process, that of the table which a member told last.
        """
        others = {member.node_id: member.node for member in members if member.role == "node"}
        missing = [node for id_, node in others.items() if not self.reached(name, digests.get(id_))]
        return {"alive": len(others) + 1, "have": len(others) + 1 - len(missing), "missing": sorted(missing)}

    async def grow_older(self) -> None:
        """An hour has passed. Raises ViiworkError when that cannot be written to the disk."""
        async with self._turn:
            if any(entry[0].deleted for entry in self._table.entries.values()):
                await self._replace(self._table.older())

    async def _replace(self, table: Table[W]) -> None:
        if table != self._table:
            await save_then(partial(self._store.save, table), partial(self._hold, table))

    def _hold(self, table: Table[W]) -> None:
        news = changes(self._table, table)
        self._table = table
        self._note(news)

    def _note(self, news: Iterable[Change[W]]) -> None:
        found = list(news)
        self._generation += 1
        for change in found:
            self._changed[change.name] = self._generation
        self._changed = {name: at for name, at in self._changed.items() if name in self._table.entries}
        self._remember(self._table.digest, self._generation)
        for change in found:
            self._told(change)

    def _remember(self, digest: str, generation: int) -> None:
        self._digests[digest] = max(generation, self._digests.pop(digest, _CONTAINED))
        while len(self._digests) > DIGESTS:
            self._digests.popitem(last=False)
