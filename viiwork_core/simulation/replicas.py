"""Caches that move between simulated hosts: saved after a turn, sent over a link, imported before the next turn.

Whether a replica is imported is decided by the node's own planner.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from viiwork_core.kvshare.holdings import Held
from viiwork_core.kvshare.planner import Import, plan_import
from viiwork_core.kvshare.replicas import Replica
from viiwork_core.kvshare.sealing import ReplicaHeader
from viiwork_core.simulation.agenda import Agenda
from viiwork_core.simulation.engine import Content
from viiwork_core.simulation.scenario import KvModel

FINGERPRINT = "f" * 64


@dataclass(frozen=True, slots=True)
class Copy:
    """One session's cache as it was after a turn."""

    session: str
    turn: int
    content: Content

    def replica(self) -> Replica:
        """As the planner knows it."""
        header = ReplicaHeader(
            model="model",
            group="group",
            fingerprint=FINGERPRINT,
            session=self.session,
            turn=self.turn,
            tokens=self.content.tokens,
            length=1,
            blake3="0" * 64,
        )
        return Replica(header, Path(), 0.0)


class Store:
    """The replicas that lie at one host."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._copies: OrderedDict[str, Copy] = OrderedDict()
        """The longest unused first."""

    def add(self, copy: Copy) -> None:
        """One has arrived whole. An older one than is here changes nothing."""
        known = self._copies.get(copy.session)
        if known is not None and known.turn >= copy.turn:
            return
        self._copies[copy.session] = copy
        self._copies.move_to_end(copy.session)
        if len(self._copies) > self._limit:
            self._copies.popitem(last=False)

    def find(self, session: str) -> Copy | None:
        """What lies here of a session."""
        return self._copies.get(session)

    def to_import(self, session: str, turn: int, held: int | None, held_turn: int) -> Copy | None:
        """What the planner would import before `turn`, given the tokens that the slot holds already."""
        copy = self._copies.get(session)
        if copy is None or copy.turn >= turn:
            return None
        known = None if held is None else Held(session, held_turn, held)
        decided = plan_import(replica=copy.replica(), held=known, fingerprint=FINGERPRINT, context=None)
        return copy if isinstance(decided, Import) else None


class Sender:
    """What one host sends to others, one transfer at a time, the newest turn of a session in place of older ones."""

    def __init__(self, model: KvModel, agenda: Agenda) -> None:
        self._model = model
        self._agenda = agenda
        self._waiting: OrderedDict[str, tuple[Copy, Callable[[Copy], None]]] = OrderedDict()
        self._acknowledged: dict[str, int] = {}
        """Tokens of each session's version that its target has."""

        self._busy = False

    def offer(self, copy: Copy, deliver: Callable[[Copy], None]) -> None:
        """Send a copy when the link is free; `deliver` takes it at the other end."""
        self._waiting[copy.session] = (copy, deliver)
        if not self._busy:
            self._next()

    def _news(self, copy: Copy) -> int:
        """Tokens that the target does not have yet."""
        return copy.content.tokens - min(self._acknowledged.get(copy.session, 0), copy.content.tokens)

    def _next(self) -> None:
        if not self._waiting:
            self._busy = False
            return
        self._busy = True
        # What is short goes first: a whole cache would hold up the deltas of all other sessions.
        session = min(self._waiting, key=lambda waiting: self._news(self._waiting[waiting][0]))
        copy, deliver = self._waiting.pop(session)
        news = self._news(copy)
        seconds = max(1, news) * self._model.mib_per_1k_tokens / 1000 * 8.388608 / self._model.link_mbit

        def arrived() -> None:
            self._acknowledged[copy.session] = copy.content.tokens
            deliver(copy)
            self._next()

        self._agenda.after(seconds, arrived)
