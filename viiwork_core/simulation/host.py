"""A host in the simulation: the node's own slot book and choice of backends, over engines that are models."""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from viiwork_core.contracts.engine import Address
from viiwork_core.contracts.policy import Outcome, Policy, Score
from viiwork_core.engines.slots import Reservation, SlotBook
from viiwork_core.engines.states import BackendState, BackendView
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.report import CapacityReport, HeadReport, ModelReport, ScoreReport
from viiwork_core.routing.backends import Held, LocalBackends
from viiwork_core.routing.conversation import Mark
from viiwork_core.routing.heads import Head, Kind
from viiwork_core.routing.scores import Scores
from viiwork_core.simulation.agenda import Agenda
from viiwork_core.simulation.engine import Content, SimulatedEngine, answered
from viiwork_core.simulation.scenario import HostModel
from viiwork_core.simulation.workload import Prompt

MODEL = "model"

HEADS_LIMIT = 64
"""Conversations that a host publishes."""

NOWHERE = Address("127.0.0.1", 1)


@dataclass(frozen=True, slots=True)
class Served:
    """How a turn ran on a host."""

    host: str
    backend: str
    cached: int
    first_token_s: float
    """From the slot to the first token."""


class SimulatedHost:
    """One machine."""

    def __init__(self, model: HostModel, policy: Policy, agenda: Agenda, rng: random.Random, opening: int) -> None:
        self.model = model
        self.policy = policy
        self.scores = Scores()
        self.scores.follow({MODEL: model.name})
        self.book = SlotBook(agenda)
        self.local = LocalBackends(self.book, policy, rng, self._held)
        self.member = Member(model.name, f"id-{model.name}", "127.0.0.1", 1)
        self._agenda = agenda
        self._engines: dict[str, SimulatedEngine] = {}
        self._agents: OrderedDict[str, int] = OrderedDict()
        """Whose conversation a session is, the one silent for longest first."""

        self._heads: dict[str, Head] = {}
        self._published: tuple[HeadReport, ...] | None = ()
        """What `heads` said last; None: something has changed since."""

        for index in range(model.backends):
            self._engines[f"{MODEL}/{index}"] = SimulatedEngine(model, opening)
            self.book.see(_view(f"{MODEL}/{index}", model.slots))

    def score(self, model: str) -> Score | None:
        """What it has measured of itself."""
        return self.scores.score(model, self._agenda.monotonic())

    def report(self, queued: int) -> CapacityReport:
        """What it tells others."""
        room = self.book.room(MODEL)
        assert room is not None, "its backends are always there"
        score = self.score(MODEL)
        told = ModelReport(
            name=MODEL,
            engine="simulated",
            slots=room.slots,
            busy=room.busy,
            queued=queued,
            backends=room.backends,
            healthy_backends=room.healthy_backends,
            service_s=self.scores.service_s(MODEL),
            score=None if score is None else ScoreReport(score.overhead_ms, score.ms_per_1k),
            heads=self._told(),
        )
        return CapacityReport(self.model.name, self.member.node_id, "simulated", (told,))

    def _told(self) -> tuple[HeadReport, ...]:
        if self._published is None:
            self._published = tuple(head.report() for head in self.heads())
        return self._published

    def heads(self) -> list[Head]:
        """The conversations that its engines hold."""
        found = []
        for session, agent in self._agents.items():
            head = self._heads[session]
            where = self._where(agent)
            if where is not None:
                backend, slot, _ = where
                kind = Kind.PARKED if slot is None else Kind.LIVE
                found.append(Head(head.link, head.mark, session, head.tokens, head.turn, kind, backend))
        return found

    def run(
        self,
        reservation: Reservation,
        prompt: Prompt,
        session: str | None,
        point: tuple[int, Mark] | None,
        began: Callable[[Served], None],
        ended: Callable[[], None],
    ) -> None:
        """Serve a turn on its reservation: `began` at the first token, `ended` when the slot is free again.

        `point`: the conversation's hash at this turn and the mark of its reply.
        """
        engine = self._engines[reservation.backend]
        asked = Content(prompt.agent, prompt.epoch, prompt.tokens)
        slot, cached, first_token_s = engine.begin(asked, reservation.slot if session is not None else None)
        served = Served(self.model.name, reservation.backend, cached, first_token_s)
        self._published = None

        def over() -> None:
            self._published = None
            engine.end(slot, Content(prompt.agent, prompt.epoch, prompt.tokens + prompt.answer))
            self._note(session, point, prompt)
            self.book.release(reservation)
            self._observe(served, prompt, session)
            self.scores.served(MODEL, first_token_s + answered(self.model, prompt.answer))
            ended()

        self._agenda.after(first_token_s, lambda: began(served))
        self._agenda.after(first_token_s + answered(self.model, prompt.answer), over)

    def _note(self, session: str | None, point: tuple[int, Mark] | None, prompt: Prompt) -> None:
        if session is None or point is None:
            return
        self._agents[session] = prompt.agent
        self._agents.move_to_end(session)
        self._heads[session] = Head(*point, session, prompt.tokens + prompt.answer, prompt.number)
        if len(self._agents) > HEADS_LIMIT:
            del self._heads[self._agents.popitem(last=False)[0]]

    def _observe(self, served: Served, prompt: Prompt, session: str | None) -> None:
        ms = served.first_token_s * 1000
        now = self._agenda.monotonic()
        self.scores.observe(MODEL, uncached=prompt.tokens - served.cached, first_token_ms=ms, now=now)
        counts = (prompt.tokens, served.cached, prompt.answer)
        self.policy.observe(Outcome(MODEL, served.backend, session, 200, *counts, ms))

    def _held(self, view: BackendView, session: str) -> Held | None:
        agent = self._agents.get(session)
        found = None if agent is None else self._engines[view.id].where(agent)
        return None if found is None else Held(found[1], found[0])

    def _where(self, agent: int) -> tuple[str, int | None, int] | None:
        """The backend, slot and tokens of the fullest cache of an agent's conversation."""
        found = [(backend, *place) for backend, engine in self._engines.items() if (place := engine.where(agent))]
        return max(found, key=lambda place: (place[1] is not None, place[2]), default=None)


def _view(name: str, slots: int) -> BackendView:
    return BackendView(name, MODEL, "simulated", BackendState.HEALTHY, 1, slots, address=NOWHERE)
