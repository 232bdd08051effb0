"""The entry node's router: which host serves a request, now or after a wait.

A state machine without I/O: every call says what happened and when, and gets back what follows. The server drives it
from the data loop, a simulator in virtual time. The host that executes chooses the backend (routing/backends).
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from viiwork_core.contracts.policy import Candidate, Policy, Query, Score
from viiwork_core.engines.penalty import Penalty
from viiwork_core.errors import QueueFull, ViiworkError
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.report import ModelReport
from viiwork_core.registry.guard import GuardedPolicy
from viiwork_core.routing.backends import Fitting, LocalBackends
from viiwork_core.routing.candidates import Candidates
from viiwork_core.routing.choice import Choice, kept
from viiwork_core.routing.line import MOST_TOLD, Serving, Waiting, estimate_s, retry_after
from viiwork_core.routing.peer import Peer
from viiwork_core.routing.queue import Queue
from viiwork_core.routing.services import Services
from viiwork_core.routing.ticket import Here, Placement, There, Ticket

TYPICAL_S: Final = 0.5
"""Seconds for which the median score of all hosts is taken for the same: each of them reports once a second."""


class Router:
    """Places tickets on this host or another, and keeps those that must wait."""

    def __init__(
        self,
        *,
        node: str,
        local: LocalBackends,
        policy: Policy,
        rng: random.Random,
        queue_max: int,
        stale_after: float,
        candidates: Candidates | None = None,
    ) -> None:
        self._node = node
        self._local = local
        self._policy = policy
        self._rng = rng
        self._stale_after = stale_after
        self._candidates = candidates or Candidates(local)
        self._queue = Queue(queue_max)
        self._peers: dict[str, Peer] = {}
        self._typical: dict[str, tuple[float, Score | None]] = {}
        """By model: the median score, and when it was taken."""

        self._services = Services(node, local, self._peers)

    # What others tell

    def report(self, view: PeerView) -> None:
        """Take in a peer's report. One that was asked for earlier than the known one changes nothing."""
        peer = self._peers.get(view.member.node)
        if peer is not None and view.asked_at < peer.view.asked_at:
            return
        if peer is None or peer.view.member.node_id != view.member.node_id:
            self._peers[view.member.node] = Peer(view)
        else:
            peer.view = view

    def forget(self, node: str) -> None:
        """The member has left or died."""
        self._peers.pop(node, None)

    def silent(self, member: Member, asked_at: float) -> None:
        """A member did not answer when it was asked: nothing goes there until it does, whatever gossip says of it."""
        if (peer := self._process(member)) is not None:
            peer.silent_at = max(peer.silent_at, asked_at)

    def _process(self, member: Member) -> Peer | None:
        """The peer, if it is still the same run of that node."""
        peer = self._peers.get(member.node)
        return peer if peer is not None and peer.view.member.node_id == member.node_id else None

    def refused(self, placement: There, now: float, *, silence: float = 0.0) -> None:
        """The peer had no room after all, or failed, after so many seconds of `silence`.

        It counts as full for the model until a report asked for later, and is passed over for a while, as long as there
        is another host.
        """
        if (peer := self._process(placement.member)) is not None:
            peer.refused[placement.model] = now
            peer.penalties.setdefault(placement.model, Penalty()).failed(placement.begun, now, silence=silence)

    def served(self, placement: There, answered_at: float) -> None:
        """The peer has answered, its first byte at `answered_at`."""
        peer = self._process(placement.member)
        if peer is not None and (penalty := peer.penalties.get(placement.model)) is not None:
            penalty.served(answered_at)

    def about(self, placement: There) -> ModelReport | None:
        """What the peer reports of the model that a forward went there for; None: nothing, or it is gone."""
        peer = self._process(placement.member)
        return peer.model(placement.model) if peer is not None else None

    def hears(self, placement: There, now: float) -> bool:
        """Whether the process that a forward went to is still known to be well, by its reports."""
        peer = self._process(placement.member)
        return peer is not None and self._fresh(peer, now)

    def returned(self, placement: There) -> None:
        """A forward has ended, however."""
        peer = self._process(placement.member)
        if peer is not None and placement in peer.forwards:
            peer.forwards.remove(placement)

    # What requests ask

    def offer(self, ticket: Ticket, now: float, *, again: bool = False) -> Placement | None:
        """Place a ticket now, or queue it and return None: `settle` or `expire` will name it.

        `again`: it was placed before and refused there, so it keeps its turn.
        Raises NotFound for a model or host that nobody knows, ModelNotServed for a model that is parked, QueueFull.
        """
        placement = self.pick(ticket, now) if again or not self._queue.blocks(ticket) else None
        if placement is None:
            if (unknown := self._services.unknown(ticket)) is not None:
                raise unknown
            ticket.queued_at = now
            try:
                self._queue.add(ticket, again=again)
            except QueueFull as error:
                error.retry_after = self.retry_after(ticket, now)
                raise
        return placement

    def may_stay(self, ticket: Ticket) -> bool:
        """Whether the ticket may be placed on this host."""
        return ticket.pin in (None, self._node)

    def settle(self, now: float) -> list[tuple[Ticket, Placement]]:
        """Place what can be placed, after a release, a fresh report or a member's coming."""
        placed = []
        for model in self._queue.models():
            placed += self._queue.settle(model, lambda ticket: self.pick(ticket, now))
        return placed

    def expire(self, now: float) -> list[Ticket]:
        """The tickets whose time is up; they wait no longer."""
        return self._queue.expire(now)

    def lost(self) -> list[tuple[Ticket, ViiworkError]]:
        """The tickets whose model or host is gone, or that gave way to another key's; they wait no longer."""
        gone: list[tuple[Ticket, ViiworkError]] = [*self._queue.ousted()]
        for model in self._queue.models():
            gone += self._queue.take(model, partial(self._services.unknown, hosts=self._services.hosts(model)))
        return gone

    def withdraw(self, ticket: Ticket) -> None:
        """The client left."""
        self._queue.remove(ticket)

    def next_deadline(self) -> float | None:
        """When `expire` has something to say next; None: nobody waits."""
        return self._queue.next_deadline()

    def queued(self, model: str) -> int:
        """How many wait for a model here."""
        return self._queue.length(model)

    def waited_for(self) -> tuple[str, ...]:
        """The models that somebody waits for here."""
        return self._queue.models()

    def waiting(self, model: str, now: float) -> list[Waiting]:
        """Who waits here for a model, in order: the first MOST_TOLD."""
        return [
            Waiting(one.request, place, one.waited + now - one.queued_at, self._estimate_s(one, place, now))
            for place, one in enumerate(self._queue.tickets(model, MOST_TOLD), start=1)
        ]

    def retry_after(self, ticket: Ticket, now: float) -> int:
        """Seconds after which a client whom no slot was found for may ask again."""
        return retry_after(self._estimate_s(ticket, self.queued(ticket.query.model) + 1, now))

    def _estimate_s(self, ticket: Ticket, place: int, now: float) -> float | None:
        return estimate_s(place, self._serving(ticket.query.model, ticket.pin, now))

    def _serving(self, model: str, pin: str | None, now: float) -> Iterable[Serving]:
        room = self._local.room(model)
        if room is not None and pin in (None, self._node):
            yield room.slots, self._candidates.service_s(model)
        for node, peer in self._peers.items():
            about = peer.model(model)
            if about is not None and pin in (None, node) and self._fresh(peer, now):
                yield about.slots, about.service_s

    def position(self, ticket: Ticket) -> int | None:
        """A waiting ticket's place in line, from 1; None: it does not wait."""
        return self._queue.position(ticket)

    def knows(self, model: str) -> bool:
        """Whether some node serves the model, or this one would if it were not parked."""
        return self._services.knows(model)

    def reports(self) -> tuple[PeerView, ...]:
        """What every peer said last."""
        return tuple(peer.view for peer in self._peers.values())

    def fresh(self, now: float) -> frozenset[str]:
        """The nodes whose reports still count."""
        return frozenset(node for node, peer in self._peers.items() if self._fresh(peer, now))

    def spill_order(self, query: Query, now: float) -> list[PeerView]:
        """The peers that serve the query's model, in the order in which it would go there without this host.

        Full ones count: the question is where the session's next turn would go, not where this one fits.
        """
        candidates = {
            node: self._candidates.there(peer.view, about, query, 1)
            for node, peer in self._peers.items()
            if (about := peer.model(query.model)) and about.healthy_backends and self._fresh(peer, now)
        }
        ranking = self._policy.rank(self._asked(query, now), tuple(candidates.values()), self._rng)
        return [self._peers[node].view for node in ranking]

    # How a place is chosen

    def _fresh(self, peer: Peer, now: float) -> bool:
        return peer.silent_at < peer.view.asked_at > now - self._stale_after

    def pick(self, ticket: Ticket, now: float) -> Placement | None:
        """Rank the hosts with room and take the first that takes it, now or not at all; no await in between."""
        fitting = self._local.fitting(ticket.query.model, ticket.weight, ticket.tried)
        candidates = [
            candidate
            for candidate in (*self._local_candidate(ticket, fitting), *self._peer_candidates(ticket, now))
            if ticket.pin in (None, candidate.id) and candidate.id not in ticket.tried
        ]
        candidates = self._trusted(candidates, ticket, now)
        if not candidates:
            ticket.holding_out = False
            return None
        query = self._asked(ticket.query, now, full=tuple(self._full(ticket, now)) if ticket.query.continues else ())
        ranking, by = _preferred(ticket.prefer, candidates), None
        placement = self._first(ranking, ticket, fitting, now)
        if placement is None:
            ranking = self._policy.rank(query, candidates, self._rng)
            by, placement = self._ranked_by, self._first(ranking, ticket, fitting, now)
        chosen = None if placement is None else self._node if isinstance(placement, Here) else placement.name
        self._note(ticket, Choice(now, query, candidates, ranking, chosen, by))
        return placement

    def _first(self, hosts: Iterable[str], ticket: Ticket, fitting: Fitting, now: float) -> Placement | None:
        """A place at the first of `hosts` that takes the ticket."""
        for host in hosts:
            if host != self._node:
                return self._forward(self._peers[host], ticket, now)
            reservation = self._local.reserve(ticket.query, ticket.weight, ticket.tried, fitting=fitting)
            if reservation is not None:
                return Here(reservation)
        return None

    @property
    def _ranked_by(self) -> str:
        """Who made the last ranking: another policy may stand in for one that fails."""
        return self._policy.ranked_by if isinstance(self._policy, GuardedPolicy) else self._policy.name

    @staticmethod
    def _note(ticket: Ticket, choice: Choice) -> None:
        if choice.chosen is not None:
            kept(ticket.choices, choice)
            return
        ticket.holding_out = bool(choice.query.full)
        if ticket.holding_out:
            ticket.held_out = choice

    def _full(self, ticket: Ticket, now: float) -> Iterable[Candidate]:
        """The hosts without room that hold the ticket's conversation, while it would rather wait for one."""
        model = ticket.query.model
        if now >= ticket.patient_until:
            return
        room = self._local.room(model)
        if room is not None and room.slots and not room.free:
            here = self._candidates.here(self._node, room, (), ticket.query, queued=self._queue.length(model))
            if here.held_tokens:
                yield here
        for node, peer in self._peers.items():
            about = peer.model(model)
            if about is None or not self._fresh(peer, now) or peer.free(about, ticket.weight):
                continue
            there = self._candidates.there(peer.view, about, ticket.query, 0)
            if there.held_tokens and about.healthy_backends and self._trusts(node, model, now):
                yield there

    @staticmethod
    def _forward(peer: Peer, ticket: Ticket, now: float) -> There:
        forward = There(peer.view.member, ticket.query.model, ticket.weight, now)
        peer.forwards.append(forward)
        if (penalty := peer.penalties.get(forward.model)) is not None:
            penalty.sent(now)
        return forward

    def _trusted(self, candidates: list[Candidate], ticket: Ticket, now: float) -> list[Candidate]:
        """Those that have not just refused or failed the model; all of them, where nobody else serves it: no host is
        shut out for being the only one, nor preferred for being the only one that looks idle."""
        model = ticket.query.model
        trusted = [one for one in candidates if self._trusts(one.id, model, now)]
        if trusted or not candidates or self._another(ticket, now):
            return trusted
        return candidates

    def _trusts(self, host: str, model: str, now: float) -> bool:
        return self._local.trusts(model) if host == self._node else not self._peers[host].passed_over(model, now)

    def _another(self, ticket: Ticket, now: float) -> bool:
        """Whether a host that is trusted serves the ticket's model, though it is full."""
        model = ticket.query.model
        hosts = {node for node, peer in self._peers.items() if self._fresh(peer, now) and peer.serves(model)}
        hosts = {ticket.pin} & {*hosts, self._node} if ticket.pin is not None else {*hosts, self._node}
        return any(self._trusts(host, model, now) for host in hosts - ticket.tried)

    def _local_candidate(self, ticket: Ticket, fitting: Fitting) -> Iterable[Candidate]:
        if fitting and (room := self._local.room(ticket.query.model)) is not None:
            yield self._candidates.here(self._node, room, fitting, ticket.query)

    def _peer_candidates(self, ticket: Ticket, now: float) -> Iterable[Candidate]:
        for peer in self._peers.values():
            model = peer.model(ticket.query.model)
            if model is not None and self._fresh(peer, now) and (free := peer.free(model, ticket.weight)):
                yield self._candidates.there(peer.view, model, ticket.query, free)

    def _asked(self, query: Query, now: float, *, full: tuple[Candidate, ...] = ()) -> Query:
        """The query as a policy gets it; where there is nothing to add, as it is."""
        known = self._typical.get(query.model)
        if known is None or now - known[0] > TYPICAL_S:
            fresh = (peer.model(query.model) for peer in self._peers.values() if self._fresh(peer, now))
            score = self._candidates.typical(query.model, (about for about in fresh if about is not None))
            known = self._typical[query.model] = (now, score)
        return replace(query, typical=known[1], full=full) if full or known[1] is not None else query


def _preferred(names: Sequence[str], candidates: Sequence[Candidate]) -> Sequence[str]:
    """Those of the client's names that are candidates. They are compared, never dialled."""
    return [name for name in names if any(one.id == name for one in candidates)]
