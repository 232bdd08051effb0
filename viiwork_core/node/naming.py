"""Naming: what the names that clients use stand for here and now, and this node's part in the mesh's table of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import structlog

from viiwork_core.clock import Clock
from viiwork_core.config.schema import Config
from viiwork_core.engines.slots import SlotBook
from viiwork_core.errors import ModelNotServed, ViiworkError
from viiwork_core.mesh.alias_book import AliasBook, alias_store
from viiwork_core.mesh.alias_table import AliasWrite
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.table import Change
from viiwork_core.mesh.table_exchange import TableExchange
from viiwork_core.mesh.table_text import plain
from viiwork_core.node.background import Background
from viiwork_core.node.meshwork import Mesh
from viiwork_core.observe.events import EventLog
from viiwork_core.routing.router import Router
from viiwork_core.web import aliases
from viiwork_core.web.catalog import ModelRecord

HOUR_S: Final = 3600.0
RETRY_AFTER_S: Final = 5

_log = structlog.get_logger("viiwork.node")


class Naming:
    """On the data loop. A real model of the mesh comes before an alias of the same name."""

    def __init__(self, config: Config, router: Router, slots: SlotBook, events: EventLog, clock: Clock) -> None:
        self._router = router
        self._slots = slots
        self._clock = clock
        self._stale_after = config.routing.stale_after
        self._events = events
        self._exchange: TableExchange[AliasWrite] | None = None
        self._members: Callable[[], Sequence[Member]] = tuple
        self._aliases = AliasBook(
            alias_store(config.node.state_dir),
            node=config.node.name,
            clock=clock,
            known=router.knows,
            served=self.serves,
            tell=self._tell,
        )
        self._node = config.node.name

    async def open(self) -> None:
        """Read what was known before. Raises ConfigError when that cannot be read."""
        await self._aliases.open()

    def follow(self, mesh: Mesh | None, background: Background) -> None:
        """Take part in the mesh's table, and let time pass for what was deleted."""
        background.serve(self._pass_time())
        if mesh is not None:
            self._members = mesh.membership.members
            self._exchange = TableExchange(
                self._aliases,
                mesh.links,
                path=aliases.PATH,
                digest_in=lambda report: report.aliases,
                clock=self._clock,
                spawn=background.serve,
            )

    def heard(self, view: PeerView) -> None:
        """A member has reported."""
        if self._exchange is not None:
            self._exchange.heard(view)

    async def _pass_time(self) -> None:
        while True:
            await asyncio.sleep(HOUR_S)
            try:
                await self._aliases.grow_older()
            except ViiworkError as error:
                _log.error("deleted aliases are kept for longer", reason=error.message)

    def _tell(self, change: Change[AliasWrite]) -> None:
        now, lost = change.now, change.lost
        if now is None:
            return
        if change.changed:
            self._events.emit("alias", f"{change.name} → {_meaning(now)} (by {now.by})")
        if lost is not None:
            what = f"{_meaning(now)} by {now.by} is kept, {_meaning(lost)} by {lost.by} gives way"
            self._events.emit("alias", f"{change.name} was written twice at one time: {what}")

    # What names stand for

    @property
    def digest(self) -> str:
        """The digest of the whole table."""
        return self._aliases.table.digest

    def resolve(self, name: str) -> str | None:
        """The model that a client means by a name; None: it is not an alias, or a real model has that name.

        Raises ModelNotServed when neither the alias's target nor one of its fallbacks is served now.
        """
        write = self._aliases.table.live.get(name)
        if write is None or self._router.knows(name):
            return None
        model = self._first_served(write)
        if model is None:
            what = f"alias {name} stands for nothing that is served now"
            raise ModelNotServed(what, remedy=f"its models: {', '.join(write.models)}", retry_after=RETRY_AFTER_S)
        return model

    def _first_served(self, write: AliasWrite) -> str | None:
        return next(filter(self.serves, write.models), None)

    def serves(self, model: str) -> bool:
        """Whether a healthy backend here or a member's fresh report has the model, full or not."""
        room = self._slots.room(model)
        if room is not None and room.healthy_backends:
            return True
        now = self._clock.monotonic()
        fresh = (view for view in self._router.reports() if now - view.asked_at < self._stale_after)
        return any(one.name == model and one.healthy_backends for view in fresh for one in view.report.models)

    def records(self, models: Sequence[ModelRecord]) -> list[ModelRecord]:
        """The aliases as models: each with what is known of the model that it stands for now."""
        known = {record.id: record for record in models}
        return [self._record(name, write, known) for name, write in self._aliases.table.live.items()]

    def _record(self, name: str, write: AliasWrite, known: Mapping[str, ModelRecord]) -> ModelRecord:
        meant = known.get(self._first_served(write) or write.target)
        empty = ModelRecord(name, "alias", None)
        return replace(meant or empty, id=name, owned_by="alias", target=write.target)

    # What the API tells and takes

    def infos(self) -> dict[str, Any]:
        """All names that stand for something."""
        table = self._aliases.table
        return {"digest": table.digest, "aliases": [self._info(name, write) for name, write in table.live.items()]}

    def info(self, name: str) -> dict[str, Any]:
        """One name, deleted or not, with its history and who has it. Raises NotFound."""
        head, *before = self._aliases.entry(name)
        return {**self._info(name, head), "history": list(map(plain, before)), "members": self._having(name)}

    def _info(self, name: str, write: AliasWrite) -> dict[str, Any]:
        state, resolved = self._state(name, write)
        return {
            "name": name,
            "target": write.target or None,
            "fallbacks": write.fallbacks,
            "version": write.ver,
            "updated_at": write.ts,
            "updated_by": write.by,
            "resolved": resolved,
            "state": state,
        }

    def _state(self, name: str, write: AliasWrite) -> tuple[str, str | None]:
        """ok, fallback, unavailable, shadowed or deleted; and what a request for the name gets."""
        if self._router.knows(name):
            return "shadowed", name
        if write.deleted:
            return "deleted", None
        model = self._first_served(write)
        if model is None:
            return "unavailable", None
        return "ok" if model == write.target else "fallback", model

    def _having(self, name: str) -> dict[str, Any]:
        """How many of the members that are alive, this node among them, have what is known here of a name."""
        digests = {view.member.node_id: view.report.aliases or None for view in self._router.reports()}
        return self._aliases.having(name, self._members(), digests)

    def page(self, after: str) -> bytes:
        """The part of the table that follows a name."""
        return self._aliases.text.encode_page(self._aliases.table, after)

    def entry(self, name: str) -> tuple[AliasWrite, ...]:
        """A name's writes, the newest first. Raises NotFound."""
        return self._aliases.entry(name)

    async def set(self, name: str, target: str, fallbacks: Sequence[str], *, force: bool) -> bool:
        """Let a name stand for a model. Raises ViiworkError."""
        return await self._aliases.set(name, target, fallbacks, force=force)

    async def remove(self, name: str) -> None:
        """Let a name stand for nothing. Raises ViiworkError."""
        await self._aliases.remove(name)

    async def revert(self, name: str) -> None:
        """Let a name stand for what it stood for before. Raises ViiworkError."""
        await self._aliases.revert(name)


def _meaning(write: AliasWrite) -> str:
    if write.deleted:
        return "nothing"
    return f"{write.target}, else {', '.join(write.fallbacks)}" if write.fallbacks else write.target
