"""A host in the simulation: the node's own slot book and choice of backends, over engines that are models."""

from __future__ import annotations

import random
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
from viiwork_core.routing.published import Place, Published
from viiwork_core.routing.scores import Scores
from viiwork_core.simulation.agenda import Agenda
from viiwork_core.simulation.engine import Content, SimulatedEngine, answered
from viiwork_core.simulation.replicas import Copy, Sender
from viiwork_core.simulation.scenario import HostModel, KvModel
from viiwork_core.simulation.workload import Prompt

MODEL = "model"

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

    def __init__(
        self,
        model: HostModel,
        policy: Policy,
        agenda: Agenda,
        rng: random.Random,
        opening: int,
        kv: KvModel | None = None,
    ) -> None:
        self.model = model
        self.policy = policy
        self.scores = Scores()
        self.scores.follow({MODEL: model.name})
        self.book = SlotBook(agenda)
        self.local = LocalBackends(self.book, policy, rng, self._held)
        self.member = Member(model.name, f"id-{model.name}", "127.0.0.1", 1)
        self._agenda = agenda
        self._engines: dict[str, SimulatedEngine] = {}
        self._kv = kv
        self.sender = Sender(model.name, kv, agenda, opening) if kv else None
        self.target: Callable[[str, int], SimulatedHost | None] = _nowhere
        """Where a session would go next without this host."""

        self._turns: dict[str, int] = {}
        """The newest turn of each session that an engine here holds."""

        self._histories: dict[str, tuple[int, int]] = {}
        """Agent and epoch of each session."""

        self._published = Published()
        self._told: tuple[HeadReport, ...] | None = ()
        """What was published last; None: something has changed since."""

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
            active=self.active(MODEL),
            service_s=self.scores.service_s(MODEL),
            score=None if score is None else ScoreReport(score.overhead_ms, score.ms_per_1k),
            heads=self._heads(),
        )
        return CapacityReport(self.model.name, self.member.node_id, "simulated", (told,))

    def active(self, model: str) -> int:
        """Conversations that it served of late."""
        return self._published.active(model, self._agenda.monotonic())

    def _heads(self) -> tuple[HeadReport, ...]:
        if self._told is None:
            self._told = tuple(head.report() for head in self._published.heads(MODEL, self._where))
        return self._told

    def run(
        self,
        reservation: Reservation,
        prompt: Prompt,
        session: str | None,
        point: tuple[int, Mark] | None,
        began: Callable[[Served], None],
        ended: Callable[[], None],
        wake: Callable[[], None],
    ) -> None:
        """Serve a turn on its reservation: `began` at the first token, `ended` at the last, `wake` when the slot is
        free again.

        `point`: the conversation's hash at this turn and the mark of its reply.
        """
        engine = self._engines[reservation.backend]
        asked = Content(prompt.agent, prompt.epoch, prompt.tokens)
        imported_s = self._import(engine, reservation, asked, session, prompt.number)
        slot, cached, first_token_s = engine.begin(asked, reservation.slot if session is not None else None)
        first_token_s += imported_s
        served = Served(self.model.name, reservation.backend, cached, first_token_s)
        self._told = None

        def over() -> None:
            self._told = None
            content = Content(prompt.agent, prompt.epoch, prompt.tokens + prompt.answer)
            engine.end(slot, content)
            self._note(session, point, prompt)
            self._observe(served, prompt, session)
            self.scores.served(MODEL, first_token_s + answered(self.model, prompt.answer))
            saving = self._save(session, prompt.number, content)

            def released() -> None:
                self.book.release(reservation)
                wake()

            self._agenda.after(saving, released)
            ended()

        self._agenda.after(first_token_s, lambda: began(served))
        self._agenda.after(first_token_s + answered(self.model, prompt.answer), over)

    def _import(
        self, engine: SimulatedEngine, reservation: Reservation, asked: Content, session: str | None, turn: int
    ) -> float:
        """Put a newer replica of the session into its slot, if the planner would. The seconds that it takes."""
        if self._kv is None or self.sender is None or session is None or reservation.slot is None:
            return 0.0
        held = engine.where(asked.agent, asked.epoch)
        copy = self.sender.store.to_import(session, turn, held[1] if held else None, self._turns.get(session, 0))
        if copy is None or (copy.content.agent, copy.content.epoch) != (asked.agent, asked.epoch):
            return 0.0
        engine.restore(reservation.slot, copy.content)
        return self._kv.import_s

    def _save(self, session: str | None, turn: int, content: Content) -> float:
        """Save a turn and send it to where the session would go next. The seconds for which the slot is held."""
        if session is None or self._kv is None or self.sender is None or content.tokens < self._kv.min_tokens:
            return 0.0
        self._turns[session] = turn
        target, sender = self.target(session, content.tokens), self.sender
        if target is None or (there := target.sender) is None:
            return 0.0
        copy = Copy(session, turn, content)
        self._agenda.after(self._kv.save_s, lambda: sender.offer(copy, there))
        return self._kv.save_s

    def _note(self, session: str | None, point: tuple[int, Mark] | None, prompt: Prompt) -> None:
        if session is None or point is None:
            return
        self._histories[session] = (prompt.agent, prompt.epoch)
        head = Head(*point, session, prompt.tokens + prompt.answer, prompt.number)
        self._published.ended(MODEL, head, self._agenda.monotonic())

    def _observe(self, served: Served, prompt: Prompt, session: str | None) -> None:
        ms = served.first_token_s * 1000
        now = self._agenda.monotonic()
        self.scores.observe(MODEL, uncached=prompt.tokens - served.cached, first_token_ms=ms, now=now)
        counts = (prompt.tokens, served.cached, prompt.answer)
        self.policy.observe(Outcome(MODEL, served.backend, session, 200, *counts, ms))

    def _held(self, view: BackendView, session: str) -> Held | None:
        history = self._histories.get(session)
        found = None if history is None else self._engines[view.id].where(*history)
        return None if found is None else Held(found[1], found[0])

    def _where(self, session: str) -> Place | None:
        """The fullest cache of a session."""
        history = self._histories.get(session)
        if history is None:
            return None
        found = [(backend, *held) for backend, engine in self._engines.items() if (held := engine.where(*history))]
        if not found:
            return None
        backend, slot, tokens = max(found, key=lambda place: (place[1] is not None, place[2]))
        return Place(Kind.PARKED if slot is None else Kind.LIVE, backend, tokens)


def _nowhere(session: str, tokens: int) -> None:
    del session, tokens


def _view(name: str, slots: int) -> BackendView:
    return BackendView(name, MODEL, "simulated", BackendState.HEALTHY, 1, slots, address=NOWHERE)
