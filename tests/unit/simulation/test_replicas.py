"""Caches that move in the simulation."""

from __future__ import annotations

import msgspec

from viiwork_core import NoOptions
from viiwork_core.builtin.priced import Fastest
from viiwork_core.simulation.agenda import Agenda
from viiwork_core.simulation.engine import Content
from viiwork_core.simulation.figures import Figures, figures
from viiwork_core.simulation.replicas import Copy, Sender, Store
from viiwork_core.simulation.run import simulate
from viiwork_core.simulation.scenario import KvModel, Names, load

KV = KvModel(link_mbit=838.8608, mib_per_1k_tokens=100, save_s=0.0, import_s=1.0)
"""1,000 tokens take a second."""


def copy(session: str, turn: int, tokens: int) -> Copy:
    return Copy(session * 32, turn, Content(0, 0, tokens))


def test_a_transfer_takes_as_long_as_what_is_new() -> None:
    agenda, came = Agenda(), list[tuple[float, int]]()
    sender = Sender(KV, agenda)
    for turn, tokens in ((1, 10_000), (2, 12_000)):
        sender.offer(copy("a", turn, tokens), lambda one: came.append((agenda.monotonic(), one.turn)))
        agenda.run(20.0 * turn)
    assert came == [(10.0, 1), (22.0, 2)]


def test_what_is_short_goes_first_and_the_newest_turn_wins() -> None:
    agenda, came = Agenda(), list[tuple[str, int]]()
    sender = Sender(KV, agenda)

    def offer(*copies: Copy) -> None:
        for one in copies:
            sender.offer(one, lambda got: came.append((got.session[0], got.turn)))

    offer(copy("c", 1, 8_000))
    agenda.run(50.0)
    offer(copy("a", 1, 5_000), copy("b", 1, 9_000), copy("c", 2, 9_000), copy("b", 2, 9_500))
    agenda.run(100.0)
    assert came == [("c", 1), ("a", 1), ("c", 2), ("b", 2)]


def test_the_store_keeps_the_newest_turns_and_no_more_than_it_may() -> None:
    store = Store(2)
    for one in (copy("a", 2, 10), copy("a", 1, 5), copy("b", 1, 10), copy("c", 1, 10)):
        store.add(one)
    assert store.find("a" * 32) is None
    assert store.find("c" * 32) == copy("c", 1, 10)
    assert store.to_import("c" * 32, 2, held=None, held_turn=0) == copy("c", 1, 10)
    assert store.to_import("c" * 32, 2, held=10, held_turn=1) is None, "the engine holds that turn already"
    assert store.to_import("c" * 32, 1, held=None, held_turn=0) is None


def short(name: str) -> Figures:
    scenario = msgspec.structs.replace(load(name), minutes=50)
    return figures(simulate(scenario, lambda: Fastest(NoOptions()), Names.HEADER))


def test_a_switch_is_warm_where_a_replica_came_before() -> None:
    bare, shared = short("two-5090-none"), short("two-5090-10gbe")
    assert bare.switched > 10
    assert bare.switched_warm < 5.0
    assert shared.switched_warm > 80.0
    assert shared.first_token_p90 < bare.first_token_p90
