"""The entry node's router: which host serves a request, now or after a wait.

A state machine without I/O: every call says what happened and when, and gets back what follows. The server drives it
from the data loop, a simulator in virtual time. The host that executes chooses the backend (routing/backends).
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import partial

from viiwork_core.contracts.policy import Candidate, Policy, Query
from viiwork_core.errors import ModelNotServed, NotFound, ViiworkError
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.report import ModelReport
from viiwork_core.routing.backends import LocalBackends
from viiwork_core.routing.queue import Queue
from viiwork_core.routing.ticket import Here, Placement, There, Ticket


@dataclass(slots=True)
class _Peer:
    view: PeerView
    refused: dict[str, float] = field(default_factory=dict)
    """Model -> when the peer last refused it."""

    forwards: list[There] = field(default_factory=list)
    """Ours, in flight there."""

    def model(self, name: str) -> ModelReport | None:
        return next((model for model in self.view.report.models if model.name == name), None)

    def free(self, model: ModelReport, weight: int) -> int:
        """Free slots by the peer's report, less what the report cannot know of yet; 0: too few for `weight`."""
        asked_at = self.view.asked_at
        if self.refused.get(model.name, float("-inf")) >= asked_at or not model.healthy_backends:
            return 0
        unseen = sum(one.weight for one in self.forwards if one.model == model.name and one.begun >= asked_at)
        free = model.slots - model.busy - unseen
        # A heavy request takes a whole backend there, as it would here.
        return free if free >= max(1, min(weight, model.slots // model.healthy_backends)) else 0


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
    ) -> None:
        self._node = node
        self._local = local
        self._policy = policy
        self._rng = rng
        self._stale_after = stale_after
        self._queue = Queue(queue_max)
        self._peers: dict[str, _Peer] = {}

    # What others tell

    def report(self, view: PeerView) -> None:
        """Take in a peer's report. One that was asked for earlier than the known one changes nothing."""
        peer = self._peers.get(view.member.node)
        if peer is not None and view.asked_at < peer.view.asked_at:
            return
        if peer is None or peer.view.member.node_id != view.member.node_id:
            self._peers[view.member.node] = _Peer(view)
        else:
            peer.view = view

    def forget(self, node: str) -> None:
        """The member has left or died."""
        self._peers.pop(node, None)

    def refused(self, placement: There, now: float) -> None:
        """The peer had no room after all: it counts as full for the model until a report asked for later."""
        peer = self._peers.get(placement.member.node)
        if peer is not None:
            peer.refused[placement.model] = now

    def returned(self, placement: There) -> None:
        """A forward has ended, however."""
        peer = self._peers.get(placement.member.node)
        if peer is not None and placement in peer.forwards:
            peer.forwards.remove(placement)

    # What requests ask

    def offer(self, ticket: Ticket, now: float, *, again: bool = False) -> Placement | None:
        """Place a ticket now, or queue it and return None: `settle` or `expire` will name it.

        `again`: it was placed before and refused there, so it keeps its turn.
        Raises NotFound for a model or host that nobody knows, ModelNotServed for a model that is parked, QueueFull.
        """
        self._check_known(ticket)
        placement = self.pick(ticket, now) if again or not self._queue.blocks(ticket) else None
        if placement is None:
            self._queue.add(ticket, again=again)
        return placement

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
        """The tickets whose model or host is gone; they wait no longer."""
        gone: list[tuple[Ticket, ViiworkError]] = []
        for model in self._queue.models():
            hosts = self._hosts(model)
            gone += self._queue.take(model, partial(self._unknown, hosts=hosts))
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

    def position(self, ticket: Ticket) -> int | None:
        """A waiting ticket's place in line, from 1; None: it does not wait."""
        return self._queue.position(ticket)

    def knows(self, model: str) -> bool:
        """Whether some node serves the model, or this one would if it were not parked."""
        return bool(self._hosts(model)) or self._local.parked(model)

    def reports(self) -> tuple[PeerView, ...]:
        """What every peer said last."""
        return tuple(peer.view for peer in self._peers.values())

    def contexts(self) -> dict[str, int | None]:
        """Every model that some peer reports, with the smallest context that one of them reports for it."""
        found: dict[str, int | None] = {}
        for peer in self._peers.values():
            for model in peer.view.report.models:
                known = found.get(model.name)
                found[model.name] = min((c for c in (known, model.ctx) if c is not None), default=None)
        return found

    def spill_order(self, query: Query, now: float) -> list[PeerView]:
        """The peers that serve the query's model, in the order in which it would go there without this host.

        Full ones count: the question is where the session's next turn would go, not where this one fits.
        """
        peers = {
            node: peer
            for node, peer in self._peers.items()
            if (model := peer.model(query.model)) and model.healthy_backends and self._fresh(peer, now)
        }
        candidates = [self._peer_candidate(node, peer, query, free=1) for node, peer in peers.items()]
        return [peers[node].view for node in self._policy.rank(query, candidates, self._rng)]

    # How a place is chosen

    def _check_known(self, ticket: Ticket) -> None:
        if (error := self._unknown(ticket, self._hosts(ticket.query.model))) is not None:
            raise error

    def _unknown(self, ticket: Ticket, hosts: set[str]) -> ViiworkError | None:
        model = ticket.query.model
        if self._local.parked(model) and (ticket.pin == self._node or not hosts):
            what = f'model "{model}" is parked on {self._node}'
            return ModelNotServed(what, remedy=f"start it again there: viiwork up {model}", retry_after=5)
        if not hosts:
            known = {*self.contexts(), *self._local.models()}
            return NotFound(f'model "{model}" is not served by any node', remedy=f"known models: {_names(known)}")
        if ticket.pin is not None and ticket.pin not in hosts:
            return NotFound(f'model "{model}" is not served by host "{ticket.pin}"', remedy=f"hosts: {_names(hosts)}")
        return None

    def _hosts(self, model: str) -> set[str]:
        hosts = {node for node, peer in self._peers.items() if peer.model(model)}
        return hosts | {self._node} if self._local.room(model) is not None else hosts

    def _fresh(self, peer: _Peer, now: float) -> bool:
        return now - peer.view.asked_at < self._stale_after

    def pick(self, ticket: Ticket, now: float) -> Placement | None:
        """Rank the hosts with room and take the first that takes it, now or not at all; no await in between."""
        candidates = [
            candidate
            for candidate in (*self._local_candidate(ticket), *self._peer_candidates(ticket, now))
            if ticket.pin in (None, candidate.id) and candidate.id not in ticket.tried
        ]
        for host in self._policy.rank(ticket.query, candidates, self._rng) if candidates else ():
            if host != self._node:
                peer = self._peers[host]
                forward = There(peer.view.member, ticket.query.model, ticket.weight, now)
                peer.forwards.append(forward)
                return forward
            reservation = self._local.reserve(ticket.query, ticket.weight, ticket.tried)
            if reservation is not None:
                return Here(reservation)
        return None

    def _local_candidate(self, ticket: Ticket) -> Iterable[Candidate]:
        room = self._local.room(ticket.query.model)
        free = self._local.free(ticket.query.model, ticket.weight, ticket.tried)
        if room is not None and free:
            held = self._local.held(ticket.query)
            yield Candidate(id=self._node, local=True, slots=room.slots, free=free, rtt_ms=0.0, held_tokens=held)

    def _peer_candidates(self, ticket: Ticket, now: float) -> Iterable[Candidate]:
        for node, peer in self._peers.items():
            model = peer.model(ticket.query.model)
            if model is not None and self._fresh(peer, now) and (free := peer.free(model, ticket.weight)):
                yield self._peer_candidate(node, peer, ticket.query, free=free)

    @staticmethod
    def _peer_candidate(node: str, peer: _Peer, query: Query, *, free: int) -> Candidate:
        model = peer.model(query.model)
        slots, waiting = (model.slots, model.queued) if model else (free, None)
        return Candidate(id=node, local=False, slots=slots, free=free, waiting=waiting, rtt_ms=peer.view.rtt_ms)


def _names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
