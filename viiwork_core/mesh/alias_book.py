"""The aliases that this node knows now: what the operator may write, and what is said of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import structlog

from viiwork_core.clock import Clock
from viiwork_core.errors import AliasRefused, InvalidRequest, NotFound
from viiwork_core.mesh.alias_table import ALIASES, MAX_LIVE, MAX_NAMES, NAME, AliasWrite
from viiwork_core.mesh.book import Book
from viiwork_core.mesh.table import Change
from viiwork_core.mesh.table_store import TableStore

FILE: Final = "aliases.json"

_log = structlog.get_logger("viiwork.mesh")


def alias_store(state_dir: Path) -> TableStore[AliasWrite]:
    """The file of a node's aliases."""
    return TableStore(state_dir / FILE, ALIASES)


class AliasBook(Book[AliasWrite]):
    """On the data loop. A write is on disk before anybody sees it."""

    noun = "alias"
    refusal = AliasRefused

    def __init__(
        self,
        store: TableStore[AliasWrite],
        *,
        node: str,
        clock: Clock,
        known: Callable[[str], bool],
        served: Callable[[str], bool],
        tell: Callable[[Change[AliasWrite]], None],
    ) -> None:
        """`known`: whether a real model of the mesh has this name; `served`: whether one could serve it now."""
        super().__init__(store, node=node, clock=clock)
        self._known = known
        self._served = served
        self._tell = tell

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
            await self._put(name, target=target, fallbacks=tuple(fallbacks))
        return True

    async def remove(self, name: str) -> None:
        """Let a name stand for nothing. Raises NotFound."""
        async with self._turn:
            head = self._head(name)
            if head is None or head.deleted:
                raise self._unknown(name)
            await self._put(name, deleted=True)

    async def revert(self, name: str) -> None:
        """Let a name stand for what it stood for before; a second time: for what it stands for now.

        Raises NotFound for a name that nobody remembers, AliasRefused for one without a past.
        """
        async with self._turn:
            entry = self.entry(name)
            if len(entry) < 2:
                raise AliasRefused(f"alias {name} has no earlier state", remedy="set it, or remove it")
            before = entry[1]
            if not before.deleted:
                self._check_free(name)
                self._check_models(name, before.models, force=True)
            await self._put(name, target=before.target, fallbacks=before.fallbacks, deleted=before.deleted)

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
            raise AliasRefused(f"alias {name} cannot stand for itself", remedy="name a model")
        if doubled := _doubled(models):
            raise AliasRefused(f"{doubled} is there twice", remedy="name each model once")
        if other := next((model for model in models if model in self._table.live and not self._known(model)), None):
            raise AliasRefused(f"{other} is an alias", remedy="name the model that it stands for")
        if not force and not self._served(models[0]):
            raise AliasRefused(f"no node serves {models[0]} now", remedy="check its name, or use --force (force: true)")

    async def _put(
        self, name: str, *, target: str = "", fallbacks: tuple[str, ...] = (), deleted: bool = False
    ) -> None:
        try:
            write = AliasWrite(*self._stamp(name), target, fallbacks, deleted)
        except ValueError as error:
            raise InvalidRequest(f"alias {name}: {error}") from error
        await self._write(name, write)

    def _told(self, change: Change[AliasWrite]) -> None:
        self._log(change)
        self._tell(change)

    @staticmethod
    def _log(change: Change[AliasWrite]) -> None:
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
