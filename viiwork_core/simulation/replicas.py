"""Caches that move between simulated hosts: saved after a turn, sent over a link, imported before the next turn.

Whether a replica is imported, and what a transfer stands on, is decided by the node's own code.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path

from viiwork_core.kvshare.bases import newest_first
from viiwork_core.kvshare.holdings import Held
from viiwork_core.kvshare.planner import Import, plan_import
from viiwork_core.kvshare.replicas import Replica
from viiwork_core.kvshare.sealing import ReplicaHeader
from viiwork_core.simulation.agenda import Agenda
from viiwork_core.simulation.engine import Content
from viiwork_core.simulation.scenario import KvModel

FINGERPRINT = "f" * 64

MBIT = 8.388608
"""In a MiB."""


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
        self._copies: OrderedDict[str, tuple[Copy, str]] = OrderedDict()
        """By session, with the host that sent it, the longest unused first."""

    def add(self, copy: Copy, origin: str = "") -> None:
        """One has arrived whole. An older one than is here changes nothing."""
        known = self.find(copy.session)
        if known is not None and known.turn >= copy.turn:
            return
        self._copies[copy.session] = (copy, origin)
        self._copies.move_to_end(copy.session)
        if len(self._copies) > self._limit:
            self._copies.popitem(last=False)

    def find(self, session: str) -> Copy | None:
        """What lies here of a session."""
        found = self._copies.get(session)
        return found[0] if found else None

    def came_from(self, session: str, host: str) -> Copy | None:
        """The same, if that host sent it."""
        found = self._copies.get(session)
        return found[0] if found and found[1] == host else None

    def to_import(self, session: str, turn: int, held: int | None, held_turn: int) -> Copy | None:
        """What the planner would import before `turn`, given the tokens that the slot holds already."""
        copy = self.find(session)
        if copy is None or copy.turn >= turn:
            return None
        known = None if held is None else Held(session, held_turn, held)
        decided = plan_import(replica=copy.replica(), held=known, fingerprint=FINGERPRINT, context=None)
        return copy if isinstance(decided, Import) else None


class Sender:
    """What one host sends to others, one transfer at a time, the newest turn of a session in place of older ones.

    What a transfer is a delta against, the node's own rule says.
    """

    def __init__(self, host: str, model: KvModel, agenda: Agenda, opening: int) -> None:
        """`opening`: tokens that all conversations begin with."""
        self.host = host
        self.store = Store(model.store)
        self._model = model
        self._agenda = agenda
        self._opening = opening
        self._waiting: OrderedDict[str, tuple[Copy, Sender]] = OrderedDict()
        self._acknowledged: OrderedDict[tuple[str, str], Copy] = OrderedDict()
        """By session and host, the version that it has, the longest unused first."""

        self._busy = False

    def offer(self, copy: Copy, to: Sender) -> None:
        """Send a copy to a host when the link is free."""
        self._waiting[copy.session] = (copy, to)
        if not self._busy:
            self._next()

    def has(self, copy: Copy) -> bool:
        """Whether a delta against that version can be carried out here: it came here, or it was sent from here."""
        sent = (one for (session, _), one in self._acknowledged.items() if session == copy.session)
        return copy == self.store.find(copy.session) or copy in sent

    def _bases(self, copy: Copy, to: Sender) -> list[Copy]:
        acknowledged = self._acknowledged.get((copy.session, to.host))
        return newest_first(acknowledged, self.store.came_from(copy.session, to.host))

    def _length(self, session: str) -> int:
        """Tokens that are new, as far as the sender knows before it has compared the files."""
        copy, to = self._waiting[session]
        return max(0, copy.content.tokens - max((one.content.tokens for one in self._bases(copy, to)), default=0))

    def _mib(self, copy: Copy, to: Sender) -> float:
        """Of the transfer: of what is not in the version that it stands on, or of the whole."""
        whole = copy.content.tokens / 1000 * self._model.mib_per_1k_tokens
        base = next(filter(to.has, self._bases(copy, to)), None)
        if base is None:
            return whole
        news = max(1, copy.content.tokens - base.content.shares(copy.content, self._opening))
        return min(whole, news / 1000 * (self._model.delta_mib_per_1k_tokens or self._model.mib_per_1k_tokens))

    def _next(self) -> None:
        if not self._waiting:
            self._busy = False
            return
        self._busy = True
        # What is short goes first: a whole cache would hold up the deltas of all other sessions.
        copy, to = self._waiting.pop(min(self._waiting, key=self._length))
        seconds = self._mib(copy, to) * MBIT / self._model.link_mbit

        def arrived() -> None:
            to.store.add(copy, self.host)
            self._acknowledged[copy.session, to.host] = copy
            self._acknowledged.move_to_end((copy.session, to.host))
            if len(self._acknowledged) > self._model.store:
                self._acknowledged.popitem(last=False)
            self._next()

        self._agenda.after(seconds, arrived)
