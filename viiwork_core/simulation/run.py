"""One run of a scenario under one policy."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from viiwork_core.contracts.policy import Policy
from viiwork_core.simulation.agenda import Agenda
from viiwork_core.simulation.entry import Entry, Fleet, Request
from viiwork_core.simulation.host import SimulatedHost
from viiwork_core.simulation.scenario import Names, Scenario
from viiwork_core.simulation.trace import RecordedAgent
from viiwork_core.simulation.workload import Agent, Source

RETRY_AFTER_S = 2.0
"""Seconds after which a client that was answered 429 asks again: the least that Retry-After says."""


@dataclass(frozen=True, slots=True)
class Turn:
    """How one turn went."""

    agent: int
    epoch: int
    number: int
    at: float
    """When it was asked for, seconds from the start."""

    tokens: int
    before: int | None
    """Tokens of the context after the turn before; None: none that could be reused was there."""

    cached: int
    host: str
    backend: str
    first_token_s: float
    """From the first time it was asked for."""

    queued_s: float
    """Of these, until a slot was granted that took it."""

    refusals: int
    """Other hosts that had no room after all."""

    tries: int
    """How often it was asked for: 429 each time but the last."""


@dataclass(slots=True)
class Run:
    """What came out."""

    scenario: Scenario
    policy: str
    names: Names
    turns: list[Turn] = field(default_factory=list)
    refused: int = 0
    """Answers 429."""


def simulate(
    scenario: Scenario, policy: Callable[[], Policy], names: Names, recorded: Sequence[RecordedAgent] = ()
) -> Run:
    """Run a scenario to its end. Deterministic: the same scenario, policy and names give the same turns.

    `policy` makes one policy object; every node has its own. `recorded`: the sessions of a trace, in place of the
    scenario's agents.
    """
    agenda = Agenda()
    run = Run(scenario, policy().name, names)
    fleet = Fleet(scenario, {}, agenda)
    for model in scenario.hosts:
        chance = random.Random(f"{scenario.seed} {model.name}")  # noqa: S311  # keeps no secret
        host = SimulatedHost(model, policy(), agenda, chance, scenario.agents.opening, scenario.kv)
        fleet.hosts[model.name] = host
        entry = fleet.entries[model.name] = Entry(host, host.policy, fleet, names, chance)
        host.target = entry.spill
    for entry in fleet.entries.values():
        agenda.after(0.0, entry.poll)
    sources = [(agent.begins_at, agent) for agent in recorded] or _made_up(scenario)
    entries = scenario.agents.entries
    for number, (begins_at, source) in enumerate(sources):
        client = _Client(source, fleet.entries[entries[number % len(entries)]], agenda, run)
        # After the first polls, so that every entry knows the mesh.
        agenda.after(2 * scenario.poll_s + begins_at, client.ask)
    agenda.run(scenario.minutes * 60)
    return run


def _made_up(scenario: Scenario) -> list[tuple[float, Source]]:
    model, made = scenario.agents, list[tuple[float, Source]]()
    for number in range(model.count):
        chance = random.Random(f"{scenario.seed} agent {number}")  # noqa: S311  # keeps no secret
        made.append((model.start_s * number / model.count, Agent(number, model, chance)))
    return made


class _Client:
    """Sends an agent's prompts, one after the other, and asks again what was refused."""

    def __init__(self, source: Source, entry: Entry, agenda: Agenda, run: Run) -> None:
        self._source = source
        self._entry = entry
        self._agenda = agenda
        self._run = run

    def ask(self) -> None:
        prompt, asked_at, tries = self._source.next(), self._agenda.monotonic(), 0
        if prompt is None:
            return

        def send() -> None:
            nonlocal tries
            tries += 1
            self._entry.ask(prompt, ended)

        def ended(request: Request) -> None:
            if request.status != 200:
                self._run.refused += 1
                self._agenda.after(RETRY_AFTER_S, send)
                return
            self._run.turns.append(_turn(request, asked_at, tries))
            self._agenda.after(self._source.think(), self.ask)

        send()


def _turn(request: Request, asked_at: float, tries: int) -> Turn:
    prompt, served = request.prompt, request.served
    assert served is not None
    assert request.first_token_at is not None
    return Turn(
        agent=prompt.agent,
        epoch=prompt.epoch,
        number=prompt.number,
        at=asked_at,
        tokens=prompt.tokens,
        before=prompt.before,
        cached=served.cached,
        host=served.host,
        backend=served.backend,
        first_token_s=request.first_token_at - asked_at,
        queued_s=request.granted_at - asked_at,
        refusals=request.refusals,
        tries=tries,
    )
