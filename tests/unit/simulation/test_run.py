"""The simulation: it runs the node's own code, and repeats itself."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from viiwork_core import NoOptions, Policy
from viiwork_core.builtin.policies import LeastBusy, RoundRobin
from viiwork_core.builtin.priced import Fastest
from viiwork_core.simulation.chart import chart
from viiwork_core.simulation.figures import figures, reused
from viiwork_core.simulation.run import Run, simulate
from viiwork_core.simulation.scenario import AgentModel, HostModel, Names, Scenario, load, shipped
from viiwork_core.simulation.trace import Record, agents

HOST = HostModel(name="a", backends=1, slots=2, prefill_tps=1000, decode_tps=50, overhead_s=0.1)
AGENTS = AgentModel(
    count=2, entries=("a",), opening=4000, growth=500, answer=100, think_s=2, limit=100_000, compacted=4000
)
SMALL = Scenario(name="small", notes=(), minutes=10, hosts=(HOST,), agents=AGENTS)
TWO = msgspec.structs.replace(SMALL, hosts=(HOST, msgspec.structs.replace(HOST, name="b", prefill_tps=250)))


def made(cls: type[Policy]) -> Callable[[], Policy]:
    return lambda: cls(NoOptions())


def run(scenario: Scenario = SMALL, cls: type[Policy] = Fastest, names: Names = Names.CHAIN) -> Run:
    return simulate(scenario, made(cls), names)


def test_the_same_run_comes_out_the_same() -> None:
    assert run(TWO).turns == run(TWO).turns
    other = run(msgspec.structs.replace(TWO, seed=2))
    assert other.turns != run(TWO).turns


@pytest.mark.parametrize("names", list(Names))
def test_two_agents_on_two_slots_always_find_their_cache(names: Names) -> None:
    done = run(names=names)
    assert len(done.turns) > 50
    # Without a name the engine chooses the slot, and may take the other's for what both begin with.
    assert figures(done).hit_80 == 100.0 if names is not Names.NONE else figures(done).hit_80 > 98.0
    assert figures(done).moved_host == 0.0


def test_a_cold_prompt_takes_as_long_as_it_takes_to_read() -> None:
    first = min(run().turns, key=lambda turn: turn.at)
    assert first.cached == 0
    assert first.first_token_s == pytest.approx(0.1 + first.tokens / 1000)
    second = next(turn for turn in run().turns if turn.agent == first.agent and turn.number == 2)
    assert second.cached == second.before
    assert reused(second) == 1.0


def test_more_agents_than_slots_wait_or_move() -> None:
    hosts = tuple(msgspec.structs.replace(host, parked=6) for host in TWO.hosts)
    crowded = msgspec.structs.replace(TWO, hosts=hosts, agents=msgspec.structs.replace(AGENTS, count=6))
    kept, scattered = figures(run(crowded)), figures(run(crowded, RoundRobin, Names.NONE))
    assert kept.fairness > 0.8
    assert kept.hit_80 > 95.0
    assert kept.moved_host < scattered.moved_host / 4
    assert kept.first_token_p99 < scattered.first_token_p99 / 4


def test_nobody_waits_for_ever() -> None:
    hosts = (msgspec.structs.replace(HOST, slots=1, decode_tps=2),)
    full = msgspec.structs.replace(SMALL, hosts=hosts, agents=msgspec.structs.replace(AGENTS, count=8))
    done = run(full)
    assert done.refused > 0
    assert all(turn.tries > 1 or turn.queued_s <= full.queue_timeout_s for turn in done.turns)


def test_a_slow_host_is_avoided_where_nothing_is_cached() -> None:
    fresh = msgspec.structs.replace(AGENTS, entries=("b",), opening=100, compacted=4000, limit=0)
    cold = msgspec.structs.replace(TWO, agents=fresh)
    fast = [turn.host for turn in run(cold, names=Names.NONE).turns]
    assert fast.count("a") > 0.8 * len(fast)
    alike = [turn.host for turn in run(cold, LeastBusy, Names.NONE).turns]
    assert alike.count("b") > 0.8 * len(alike)


def test_a_compacted_history_is_another_conversation() -> None:
    short = msgspec.structs.replace(SMALL, agents=msgspec.structs.replace(AGENTS, limit=6000))
    done = run(short)
    assert max(turn.epoch for turn in done.turns) > 3
    assert figures(done).hit_80 == 100.0


def test_a_trace_is_replayed_at_its_own_pace() -> None:
    records = [Record(10.0 * n, "s", 1000 + 500 * n, 50, 2.0) for n in range(5)] + [Record(45.0, "s", 800, 50, 1.0)]
    replayed = simulate(SMALL, made(Fastest), Names.CHAIN, agents(records))
    assert [turn.tokens for turn in replayed.turns] == [1000, 1500, 2000, 2500, 3000, 800]
    assert [turn.before for turn in replayed.turns] == [None, 1050, 1550, 2050, 2550, None]
    assert replayed.turns[1].cached == 1050


def test_the_chart_is_drawn_from_the_runs() -> None:
    drawn = chart([run(), run(names=Names.NONE)])
    assert drawn.startswith("<svg")
    assert drawn.count("<polyline") == 2
    assert "fastest, names: none" in drawn


@pytest.mark.parametrize("name", shipped())
def test_every_shipped_scenario_says_where_its_figures_come_from(name: str) -> None:
    scenario = load(name)
    assert scenario.name == name
    assert len(scenario.notes) > 2
