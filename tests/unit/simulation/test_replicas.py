"""Caches that move in the simulation."""

from __future__ import annotations

import msgspec
import pytest

from viiwork_core import NoOptions
from viiwork_core.builtin.priced import Fastest
from viiwork_core.simulation.agenda import Agenda
from viiwork_core.simulation.engine import Content
from viiwork_core.simulation.figures import Figures, figures
from viiwork_core.simulation.replicas import Copy, Sender, Store
from viiwork_core.simulation.run import simulate
from viiwork_core.simulation.scenario import KvModel, Names, load, shipped

KV = KvModel(link_mbit=838.8608, mib_per_1k_tokens=100, save_s=0.0, import_s=1.0)
"""1,000 tokens take a second."""

OPENING = 1_000


class Came(Store):
    """What came to a host, and when."""

    def __init__(self, agenda: Agenda) -> None:
        super().__init__(64)
        self._agenda = agenda
        self.when: list[tuple[float, str, int]] = []

    def add(self, copy: Copy, origin: str = "") -> None:
        self.when.append((self._agenda.monotonic(), copy.session[0], copy.turn))
        super().add(copy, origin)


def pair(agenda: Agenda, kv: KvModel = KV) -> tuple[Sender, Sender, Came]:
    """Two hosts, and what comes to the second."""
    one, other, came = Sender("one", kv, agenda, OPENING), Sender("two", kv, agenda, OPENING), Came(agenda)
    other.store = came
    return one, other, came


def copy(session: str, turn: int, tokens: int) -> Copy:
    return Copy(session * 32, turn, Content(0, 0, tokens))


def test_a_transfer_takes_as_long_as_what_is_new() -> None:
    agenda = Agenda()
    sender, other, came = pair(agenda)
    for turn, tokens in ((1, 10_000), (2, 12_000)):
        sender.offer(copy("a", turn, tokens), other)
        agenda.run(20.0 * turn)
    assert came.when == [(10.0, "a", 1), (22.0, "a", 2)]


def test_a_delta_has_its_own_size_and_is_no_larger_than_the_cache() -> None:
    agenda = Agenda()
    sender, other, came = pair(agenda, msgspec.structs.replace(KV, delta_mib_per_1k_tokens=1000))
    for turn, tokens in ((1, 10_000), (2, 10_500), (3, 14_000)):
        sender.offer(copy("a", turn, tokens), other)
        agenda.run(20.0 * turn)
    assert came.when == [(10.0, "a", 1), (25.0, "a", 2), (54.0, "a", 3)]


def test_a_cache_that_goes_back_is_a_delta() -> None:
    agenda = Agenda()
    one, two, came = pair(agenda)
    one.offer(copy("a", 1, 10_000), two)
    agenda.run(20.0)
    two.offer(copy("a", 2, 11_000), one)
    agenda.run(21.5)
    assert one.store.find("a" * 32) == copy("a", 2, 11_000)
    one.offer(copy("a", 3, 13_000), two)
    agenda.run(30.0)
    assert came.when[-1] == (23.5, "a", 3)


def test_a_cache_goes_whole_where_the_other_host_has_lost_the_base() -> None:
    agenda = Agenda()
    one, two, _ = pair(agenda)
    one.offer(copy("a", 1, 10_000), two)
    agenda.run(20.0)
    one._acknowledged.clear()
    two.offer(copy("a", 2, 11_000), one)
    agenda.run(30.5)
    assert one.store.find("a" * 32) is None
    agenda.run(31.5)
    assert one.store.find("a" * 32) == copy("a", 2, 11_000)


def test_of_a_compacted_history_only_the_opening_is_known() -> None:
    agenda = Agenda()
    sender, other, came = pair(agenda)
    sender.offer(copy("a", 1, 10_000), other)
    agenda.run(20.0)
    sender.offer(Copy("a" * 32, 2, Content(0, 1, 5_000)), other)
    agenda.run(30.0)
    assert came.when[-1] == (24.0, "a", 2)


def test_what_is_short_goes_first_and_the_newest_turn_wins() -> None:
    agenda = Agenda()
    sender, other, came = pair(agenda)

    def offer(*copies: Copy) -> None:
        for one in copies:
            sender.offer(one, other)

    offer(copy("c", 1, 8_000))
    agenda.run(50.0)
    offer(copy("a", 1, 5_000), copy("b", 1, 9_000), copy("c", 2, 9_000), copy("b", 2, 9_500))
    agenda.run(100.0)
    assert [one[1:] for one in came.when] == [("c", 1), ("a", 1), ("c", 2), ("b", 2)]


def test_the_store_keeps_the_newest_turns_and_no_more_than_it_may() -> None:
    store = Store(2)
    for one in (copy("a", 2, 10), copy("a", 1, 5), copy("b", 1, 10), copy("c", 1, 10)):
        store.add(one)
    assert store.find("a" * 32) is None
    assert store.find("c" * 32) == copy("c", 1, 10)
    assert store.to_import("c" * 32, 2, held=None, held_turn=0) == copy("c", 1, 10)
    assert store.to_import("c" * 32, 2, held=10, held_turn=1) is None, "the engine holds that turn already"
    assert store.to_import("c" * 32, 1, held=None, held_turn=0) is None


def found(name: str, minutes: float = 90) -> Figures:
    scenario = msgspec.structs.replace(load(name), minutes=minutes)
    return figures(simulate(scenario, lambda: Fastest(NoOptions()), Names.HEADER))


def test_a_switch_is_cold_where_no_cache_moves() -> None:
    bare = found("two-5090-none", minutes=50)
    assert bare.switched > 10
    assert bare.switched_warm < 5.0


@pytest.mark.parametrize(("scenario", "least"), [("two-5090", 97.0), ("two-5090-10gbe", 99.0)])
def test_nearly_all_switches_are_warm_at_either_speed(scenario: str, least: float) -> None:
    shared = found(scenario)
    assert shared.switched > 50
    assert shared.switched_warm >= least


def test_the_scenarios_differ_in_nothing_but_how_caches_move() -> None:
    names = [name for name in shipped() if name.startswith("two-5090")]
    assert names == ["two-5090", "two-5090-10gbe", "two-5090-10gbe-direct", "two-5090-none"]
    alike = {msgspec.json.encode(msgspec.structs.replace(load(name), name="", kv=None)) for name in names}
    assert len(alike) == 1
    links = {name: kv.link_mbit for name in names if (kv := load(name).kv)}
    assert links == {"two-5090": 640, "two-5090-10gbe": 2558, "two-5090-10gbe-direct": 3767}
