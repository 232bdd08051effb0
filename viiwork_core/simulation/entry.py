"""An entry node in the simulation: the node's own router and queue, and the attempts that the proxy would make."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from viiwork_core.contracts.policy import Outcome, Policy, Query
from viiwork_core.errors import QueueFull
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.routing.candidates import Candidates
from viiwork_core.routing.conversation import Chain, Hashes, Mark
from viiwork_core.routing.heads import Conversations, Head
from viiwork_core.routing.router import Router
from viiwork_core.routing.sessions import Identity, Sessions
from viiwork_core.routing.ticket import PATIENCE, Here, Placement, There, Ticket
from viiwork_core.simulation.agenda import Agenda
from viiwork_core.simulation.host import MODEL, Served, SimulatedHost
from viiwork_core.simulation.scenario import Names, Scenario
from viiwork_core.simulation.workload import Prompt

BYTES_PER_TOKEN = 4
"""What a prompt's size in tokens is guessed by, until an answer tells."""

HASHES = Hashes(b"the simulated mesh")


@dataclass(slots=True, eq=False)
class Request:
    """One prompt on its way."""

    prompt: Prompt
    asked_at: float
    ended: Callable[[Request], None]
    """Called once: when it was served to its end, or refused."""

    chain: Chain | None
    identity: Identity | None
    ticket: Ticket
    retries: int
    refusals: int = 0
    status: int = 0
    granted_at: float = 0.0
    served: Served | None = None
    first_token_at: float | None = None

    @property
    def session(self) -> str | None:
        """Its session's name."""
        return self.identity.session if self.identity else None


@dataclass(slots=True)
class Fleet:
    """What all entries share."""

    scenario: Scenario
    hosts: dict[str, SimulatedHost]
    agenda: Agenda
    entries: dict[str, Entry] = field(default_factory=dict)

    def wake(self) -> None:
        """A slot came free somewhere: on that host, its own queue looks at once."""
        for entry in self.entries.values():
            entry.wake()


class Entry:
    """The part of a node that clients talk to."""

    def __init__(self, host: SimulatedHost, policy: Policy, fleet: Fleet, names: Names, rng: random.Random) -> None:
        self.host = host
        self._policy = policy
        self._fleet = fleet
        self._names = names
        self._conversations = Conversations()
        self._sessions = Sessions(self._conversations, lambda: f"{rng.getrandbits(128):032x}")
        scenario = fleet.scenario
        self.router = Router(
            node=host.model.name,
            local=host.local,
            policy=policy,
            rng=rng,
            queue_max=scenario.queue_max,
            stale_after=scenario.stale_after_s,
            candidates=Candidates(host.local, self._conversations, host.score, host.scores.service_s, host.active),
        )
        self._waiting: dict[Ticket, Request] = {}

    def spill(self, session: str, tokens: int) -> SimulatedHost | None:
        """Where a session would go next without this host."""
        order = self.router.spill_order(Query(MODEL, session, tokens, continues=True), self._now())
        return self._fleet.hosts[order[0].member.node] if order else None

    # What others tell

    def poll(self) -> None:
        """Ask every other host for its capacity, now and again each interval."""
        scenario, now = self._fleet.scenario, self._now()
        for name, host in self._fleet.hosts.items():
            if host is not self.host:
                self._ask(name, host, now)
        self._fleet.agenda.after(scenario.poll_s, self.poll)

    def _ask(self, name: str, host: SimulatedHost, asked_at: float) -> None:
        half = self._fleet.scenario.rtt_ms / 2000
        queued = self._fleet.entries[name].router.queued(MODEL) if name in self._fleet.entries else 0

        def answer() -> None:
            report = host.report(queued)
            self._fleet.agenda.after(half, lambda: self._hear(PeerView(host.member, report, asked_at, half * 2000)))

        self._fleet.agenda.after(half, answer)

    def _hear(self, view: PeerView) -> None:
        self.router.report(view)
        told = [(model.name, model.heads) for model in view.report.models]
        self._conversations.report(view.member.node, told, view.asked_at)
        self.wake()

    def wake(self) -> None:
        """Something changed: whoever waits may have a place now."""
        for ticket, placement in self.router.settle(self._now()):
            self._try(self._waiting.pop(ticket), placement)

    # What agents ask

    def ask(self, prompt: Prompt, ended: Callable[[Request], None]) -> None:
        """Take a prompt in."""
        scenario, now = self._fleet.scenario, self._now()
        chain, identity = self._identify(prompt)
        query = Query(
            MODEL,
            identity.session if identity else None,
            prompt.tokens,
            begins=identity is not None and identity.begins,
            continues=identity is not None and identity.continues,
        )
        timeout = scenario.queue_timeout_s
        ticket = Ticket(query=query, weight=1, deadline=now + timeout, patient_until=now + PATIENCE * timeout)
        self._acquire(Request(prompt, now, ended, chain, identity, ticket, scenario.forward_retry))

    def _identify(self, prompt: Prompt) -> tuple[Chain | None, Identity | None]:
        if self._names is Names.NONE:
            return None, None
        chain = HASHES.chain([MODEL.encode()], prompt.messages)
        named = f"{prompt.agent + 1:032x}" if self._names is Names.HEADER else None
        return chain, self._sessions.identify(MODEL, named, chain)

    def _acquire(self, request: Request, *, again: bool = False) -> None:
        try:
            placement = self.router.offer(request.ticket, self._now(), again=again)
        except QueueFull:
            self._end(request, 429)
            return
        if placement is not None:
            self._try(request, placement)
            return
        self._waiting[request.ticket] = request
        self._fleet.agenda.after(request.ticket.deadline - self._now(), self._expire)

    def _expire(self) -> None:
        for ticket in self.router.expire(self._now()):
            self._end(self._waiting.pop(ticket), 429)

    def _try(self, request: Request, placement: Placement) -> None:
        request.granted_at = self._now()
        if isinstance(placement, Here):
            self._run(request, self.host, placement, placement)
        else:
            half = self._fleet.scenario.rtt_ms / 2000
            self._fleet.agenda.after(half, lambda: self._arrive(request, placement))

    def _arrive(self, request: Request, placement: There) -> None:
        """At the other host: into a free slot, or back."""
        host = self._fleet.hosts[placement.member.node]
        reservation = host.local.reserve(request.ticket.query, 1)
        if reservation is not None:
            self._run(request, host, Here(reservation), placement)
            return
        half = self._fleet.scenario.rtt_ms / 2000
        self._fleet.agenda.after(half, lambda: self._refused(request, placement))

    def _refused(self, request: Request, placement: There) -> None:
        request.refusals += 1
        self.router.refused(placement, self._now())
        self.router.returned(placement)
        request.ticket.tried.add(placement.name)
        again = self.router.pick(request.ticket, self._now()) if request.retries else None
        request.retries -= 1
        if again is not None:
            self._try(request, again)
            return
        request.ticket.tried.clear()
        self._acquire(request, again=True)

    def _run(self, request: Request, host: SimulatedHost, place: Here, placement: Placement) -> None:
        def began(served: Served) -> None:
            request.served, request.first_token_at = served, self._now()

        def ended() -> None:
            if isinstance(placement, There):
                self.router.returned(placement)
            self._learn(request, host)
            self._end(request, 200)

        wake = self._fleet.wake
        host.run(place.reservation, request.prompt, request.session, self._point(request), began, ended, wake)

    @staticmethod
    def _point(request: Request) -> tuple[int, Mark] | None:
        if request.chain is None or request.chain.last is None:
            return None
        return request.chain.last, HASHES.mark(call=None, text=request.prompt.reply)

    def _learn(self, request: Request, host: SimulatedHost) -> None:
        prompt, point, served = request.prompt, self._point(request), request.served
        assert served is not None, "an answer that ended has begun"
        if point is not None and request.session is not None:
            tokens = prompt.tokens + prompt.answer
            head = Head(*point, request.session, tokens, prompt.number, backend=served.backend)
            self._conversations.relayed(host.model.name, MODEL, head, self._now())
        counts = (prompt.tokens, served.cached, prompt.answer)
        self._policy.observe(
            Outcome(MODEL, host.model.name, request.session, 200, *counts, served.first_token_s * 1000)
        )

    def _end(self, request: Request, status: int) -> None:
        request.status = status
        request.ended(request)

    def _now(self) -> float:
        return self._fleet.agenda.monotonic()
