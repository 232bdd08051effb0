"""Handover: all sessions of a node that takes no new work are brought to other members, as far as they can be.

What an engine holds is saved and sent as after a turn, whether that seems to pay or not: every session moves. A replica
that no other member has a turn as new of is passed on. What another member has already is left as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import anyio.to_thread
import structlog

from viiwork_core.engines.slots import SlotBook
from viiwork_core.errors import ViiworkError
from viiwork_core.kvshare.exports import Exports
from viiwork_core.kvshare.holdings import Holdings
from viiwork_core.kvshare.replicas import Replica, ReplicaStore
from viiwork_core.kvshare.sealing import ReplicaLabel
from viiwork_core.kvshare.sending import Save
from viiwork_core.kvshare.shared_model import SharedModel, folder_of
from viiwork_core.kvshare.turns import Turn, Usage
from viiwork_core.mesh.member import Member

LOOK_S: Final = 0.1
"""Between two looks at what is still to move."""

MOST_TOLD: Final = 100
"""Sessions that are told of one by one."""

MOVED: Final = "moved"
THERE: Final = "there"
SHORT: Final = "short"
UNSHARED: Final = "unshared"
_COUNTED: Final = (MOVED, THERE, SHORT, UNSHARED)

_NOT_YET: Final = "the time was up"

_log = structlog.get_logger("viiwork.kv")

Key = tuple[str, str]
"""Model, session."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The newest that this node has of one session."""

    model: str
    session: str
    turn: int
    tokens: int
    backend: str | None
    """Whose engine holds it; None: it is a replica."""

    incarnation: int = 0
    slot: int | None = None
    replica: Replica | None = None

    @property
    def key(self) -> Key:
        return self.model, self.session


@dataclass
class Handover:
    """One node's, once. On the data loop."""

    models: Mapping[str, SharedModel]
    slotted: Mapping[str, bool]
    book: SlotBook
    holdings: Holdings
    store: ReplicaStore | None
    replicas: Callable[[], list[Replica]]
    exports: Exports | None
    """None: this node sends no caches."""

    outcomes: dict[Key, str | None] = field(default_factory=dict)
    """What became of each session: one of the words above, or why it is left; None: nothing yet."""

    def __post_init__(self) -> None:
        self._tried: dict[Key, int] = {}
        """The turn that was handed to the sender, or could not be."""

        self._failed: dict[Key, str] = {}

    async def run(self, over: Callable[[], bool], elsewhere: Callable[[str, str], int]) -> None:
        """Until every session has an outcome and `over` says that no turn is left that could bring another.

        `elsewhere`: the newest turn of a session (model, session) that another member has published, 0 for none.
        """
        while True:
            last = over()
            kept = self._kept(elsewhere)
            for one in kept:
                self.outcomes[one.key] = await self._outcome(one)
            gone = self.outcomes.keys() - {one.key for one in kept}
            for key in [key for key in gone if self.outcomes[key] is None]:
                del self.outcomes[key]  # nothing of it is here any more
            if last and all(self.outcomes.values()):
                return
            await asyncio.sleep(LOOK_S)

    def told(self) -> dict[str, Any]:
        """Counts, and what is left with the reason."""
        outcomes = list(self.outcomes.items())
        left = [(key, why or _NOT_YET) for key, why in outcomes if why not in _COUNTED]
        return {
            **{word: sum(why == word for _, why in outcomes) for word in _COUNTED},
            "remaining": len(left),
            "left": [{"model": key[0], "session": key[1], "reason": why} for key, why in left[:MOST_TOLD]],
        }

    def _kept(self, elsewhere: Callable[[str, str], int]) -> list[Kept]:
        found: dict[Key, Kept] = {}
        for view in self.book.views():
            for slot, held in self.holdings.all(view.id, view.incarnation):
                one = Kept(view.model, held.session, held.turn, held.tokens, view.id, view.incarnation, slot)
                if (known := found.get(one.key)) is None or known.turn < one.turn:
                    found[one.key] = one
        for replica in self.replicas():
            label = replica.header
            one = Kept(label.model, label.session, label.turn, label.tokens, None, replica=replica)
            known = found.get(one.key)
            newer = known is None or known.turn < one.turn
            # Whom another member serves has its cache there. Once it is under way from here, its outcome counts.
            if newer and (one.key in self._tried or elsewhere(*one.key) < one.turn):
                found[one.key] = one
        return list(found.values())

    async def _outcome(self, one: Kept) -> str | None:
        shared, exports = self.models.get(one.model), self.exports
        if shared is None or exports is None:
            return UNSHARED
        if one.tokens < shared.min_tokens:
            return SHORT
        fingerprint = one.replica.header.fingerprint if one.replica else exports.fingerprint(one.backend or "")
        if fingerprint is None:
            return "its backend's caches cannot be moved now"
        if why := exports.promises.off(one.model, fingerprint):
            return why
        target = exports.target(one.model, one.session, shared.group, fingerprint)
        if target is None:
            return "no other member of the group can take it"
        if exports.deliveries.has(one.model, one.session, one.turn, target.node):
            return MOVED if one.key in self._tried else THERE
        if exports.deliveries.under_way(one.model, one.session, one.turn):
            return None
        if self._tried.get(one.key, 0) < one.turn:
            return await self._send(one, shared, exports, fingerprint, target)
        failure = exports.deliveries.failure(one.model, one.session, one.turn)
        return self._failed.get(one.key) or failure or "it was not taken"

    async def _send(
        self, one: Kept, shared: SharedModel, exports: Exports, fingerprint: str, target: Member
    ) -> str | None:
        """Why it cannot be sent; None: it is on its way, or its slot is not free yet."""
        whose = {"model": one.model, "group": shared.group, "fingerprint": fingerprint, "session": one.session}
        label = ReplicaLabel(**whose, turn=one.turn, tokens=one.tokens)
        if one.replica is not None:
            failure = await self._pass_on(one, shared, exports, label, target)
        else:
            turn = self._reserved(one)
            if turn is None:
                return None
            try:
                usage = Usage(prompt=one.tokens, completion=0)
                failure = await exports.save(shared, turn, usage, label, target)
            finally:
                self.book.release(turn.reservation)
        self._tried[one.key] = one.turn
        if failure is not None:
            self._failed[one.key] = failure
        else:
            self._failed.pop(one.key, None)
        return failure

    def _reserved(self, one: Kept) -> Turn | None:
        """The session's own slot, as for a turn; None: it is busy, or another launch's by now."""
        assert one.backend is not None
        reservation = self.book.reserve(one.backend, prefer=one.slot)
        if reservation is None:
            return None
        own = reservation.slot == one.slot or not self.slotted.get(one.model, True)
        if not own or reservation.incarnation != one.incarnation:
            self.book.release(reservation)
            return None
        return Turn(one.session, reservation, "", b"")

    async def _pass_on(
        self, one: Kept, shared: SharedModel, exports: Exports, label: ReplicaLabel, target: Member
    ) -> str | None:
        """Send a replica that lies here, from a link of its own to the file."""
        spec = next(iter(shared.specs.values()), None)
        if spec is None or self.store is None or one.replica is None:
            return "none of the model's backends is there"
        path, length = folder_of(spec) / f"{one.session}.{one.turn}.replica.save", one.replica.header.length
        try:
            await anyio.to_thread.run_sync(partial(self.store.verified_copy, one.replica, path))
        except ViiworkError as error:
            _log.warning("kv replica not passed on", model=one.model, session=one.session, reason=error.message)
            return error.message
        exports.send(Save(path, label, target, length))
        return None
