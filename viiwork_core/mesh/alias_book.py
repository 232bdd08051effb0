"""The aliases that this node knows now: local writes, what comes from members, and the disk in between."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import structlog

from viiwork_core.clock import Clock
from viiwork_core.errors import AliasRefused, InvalidRequest, NotFound
from viiwork_core.mesh.alias_store import AliasStore
from viiwork_core.mesh.aliases import MAX_LIVE, MAX_NAMES, MAX_VERSION, NAME, AliasTable, Change, Entry, Write, changes

DIGESTS: Final = 1024
"""Digests of earlier tables, this node's and members', that are remembered."""

_CONTAINED: Final = -1

_log = structlog.get_logger("viiwork.mesh")


class AliasBook:
    """On the data loop. A write is on disk before anybody sees it."""

    def __init__(
        self,
        store: AliasStore,
        *,
        node: str,
        clock: Clock,
        known: Callable[[str], bool],
        served: Callable[[str], bool],
        tell: Callable[[Change], None],
    ) -> None:
        """`known`: whether a real model of the mesh has this name; `served`: whether one could serve it now."""
        self._store = store
        self._node = node
        self._clock = clock
        self._known = known
        self._served = served
        self._tell = tell
        self._turn = asyncio.Lock()
        self._table = AliasTable()
        self._generation = 0
        self._changed: dict[str, int] = {}
        self._digests: OrderedDict[str, int] = OrderedDict()

    async def open(self) -> None:
        """Read the file. Raises ConfigError."""
        self._table = await asyncio.to_thread(self._store.load)
        self._remember(AliasTable().digest, _CONTAINED)
        self._remember(self._table.digest, self._generation)

    @property
    def table(self) -> AliasTable:
        return self._table

    # What the operator writes

    async def set(self, name: str, target: str, fallbacks: Sequence[str] = (), *, force: bool = False) -> bool:
        """Let a name stand for a model; whether that is news. `force`: though no node serves it now.

        Raises InvalidRequest for what is no alias, AliasRefused for one that would not work.
        """
        _check_name(name)
        models = (target, *fallbacks)
        async with self._turn:
            self._check_free(name)
            self._check_models(name, models, force=force)
            head = self._head(name)
            if head is not None and not head.deleted and head.models == models:
                return False
            await self._write(name, target=target, fallbacks=tuple(fallbacks))
        return True

    async def remove(self, name: str) -> None:
        """Let a name stand for nothing. Raises NotFound."""
        async with self._turn:
            head = self._head(name)
            if head is None or head.deleted:
                raise self._unknown(name)
            await self._write(name, deleted=True)

    async def revert(self, name: str) -> None:
        """Let a name stand for what it stood for before; a second time: for what it stands for now.

        Raises NotFound for a name that nobody remembers, AliasRefused for one without a past.
        """
        async with self._turn:
            entry = self.entry(name)
            if len(entry) < 2:
                raise AliasRefused(f"alias {name} has no earlier state")
            before = entry[1]
            if not before.deleted:
                self._check_free(name)
                self._check_models(name, before.models, force=True)
            await self._write(name, target=before.target, fallbacks=before.fallbacks, deleted=before.deleted)

    def entry(self, name: str) -> Entry:
        """A name's writes, deleted or not. Raises NotFound."""
        found = self._table.entries.get(name)
        if found is None:
            raise self._unknown(name)
        return found

    def _head(self, name: str) -> Write | None:
        found = self._table.entries.get(name)
        return found[0] if found else None

    def _unknown(self, name: str) -> NotFound:
        return NotFound(f"there is no alias {name[:64]}", remedy="`viiwork alias ls` lists them")

    def _check_free(self, name: str) -> None:
        if self._known(name):
            raise AliasRefused(f"{name} is the name of a model", remedy="choose another name for the alias")
        if name in self._table.live:
            return
        if len(self._table.live) >= MAX_LIVE:
            raise AliasRefused(f"there are {MAX_LIVE} aliases already", remedy="remove one")
        if name not in self._table.entries and len(self._table.entries) >= MAX_NAMES:
            what = f"there are {MAX_NAMES} names already, those of the last 30 days that were deleted among them"
            raise AliasRefused(what, remedy="use one of the deleted names again")

    def _check_models(self, name: str, models: Sequence[str], *, force: bool) -> None:
        if name in models:
            raise AliasRefused(f"alias {name} cannot stand for itself")
        if doubled := _doubled(models):
            raise AliasRefused(f"{doubled} is there twice", remedy="name each model once")
        if other := next((model for model in models if model in self._table.live and not self._known(model)), None):
            raise AliasRefused(f"{other} is an alias", remedy="name the model that it stands for")
        if not force and not self._served(models[0]):
            raise AliasRefused(f"no node serves {models[0]} now", remedy="check its name, or use --force (force: true)")

    async def _write(
        self, name: str, *, target: str = "", fallbacks: tuple[str, ...] = (), deleted: bool = False
    ) -> None:
        head = self._head(name)
        version = head.ver + 1 if head else 1
        if version > MAX_VERSION:
            raise AliasRefused(f"the versions of alias {name} are used up", remedy="choose another name")
        now = max(0, int(self._clock.wall() * 1000))
        try:
            write = Write(version, self._node, now, target, fallbacks, deleted)
        except ValueError as error:
            raise InvalidRequest(f"alias {name}: {error}") from error
        await self._replace(self._table.written(name, write))

    # What comes from members

    async def merge(self, other: AliasTable, *digests: str) -> None:
        """Take in a member's table, or part of it. `digests`: what that member's whole table had for a digest, if all
        of it is in here now. Raises ViiworkError when it cannot be written to the disk."""
        async with self._turn:
            await self._replace(self._table.merged(other))
            for digest in digests:
                self._remember(digest, _CONTAINED)

    def contains(self, digest: str) -> bool:
        """Whether a member's table with this digest has nothing that this node does not have, or has had."""
        return digest in self._digests

    def reached(self, name: str, digest: str | None) -> bool:
        """Whether a member whose table has this digest has what this node knows of a name."""
        return digest is not None and self._digests.get(digest, _CONTAINED) >= self._changed.get(name, 0)

    async def grow_older(self) -> None:
        """An hour has passed. Raises ViiworkError when that cannot be written to the disk."""
        async with self._turn:
            if any(entry[0].deleted for entry in self._table.entries.values()):
                await self._replace(self._table.older())

    async def _replace(self, table: AliasTable) -> None:
        old = self._table
        if table == old:
            return
        saving = asyncio.ensure_future(asyncio.to_thread(self._store.save, table))
        try:
            await asyncio.shield(saving)
        finally:
            # What is on disk must be what holds, also when the caller is cancelled meanwhile.
            await asyncio.wait({saving})
            if saving.exception() is None:
                self._table = table
                self._note(changes(old, table))

    def _note(self, news: Iterable[Change]) -> None:
        found = list(news)
        self._generation += 1
        for change in found:
            self._changed[change.name] = self._generation
        self._changed = {name: at for name, at in self._changed.items() if name in self._table.entries}
        self._remember(self._table.digest, self._generation)
        for change in found:
            self._log(change)
            self._tell(change)

    def _remember(self, digest: str, generation: int) -> None:
        self._digests[digest] = max(generation, self._digests.pop(digest, _CONTAINED))
        while len(self._digests) > DIGESTS:
            self._digests.popitem(last=False)

    @staticmethod
    def _log(change: Change) -> None:
        if change.now is None:
            _log.info("alias forgotten", name=change.name)
        elif change.changed:
            _log.info("alias", name=change.name, target=change.now.target or None, by=change.now.by)
        if change.lost is not None and change.now is not None:
            _log.warning(
                "alias written twice at one time",
                name=change.name,
                kept=change.now.target or None,
                by=change.now.by,
                lost=change.lost.target or None,
                lost_by=change.lost.by,
            )


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        remedy = "use 1 to 64 of A-Z a-z 0-9 . _ -, not dots alone"
        raise InvalidRequest(f"{name[:80]!r} is no name for an alias", remedy=remedy)


def _doubled(models: Sequence[str]) -> str | None:
    return next((model for at, model in enumerate(models) if model in models[:at]), None)
