"""What a policy says of its own ranking: always of the one that it made."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from viiwork_core import Candidate, NoOptions, Query, Score
from viiwork_core.builtin.policies import LeastBusy, RoundRobin
from viiwork_core.builtin.priced import CacheAware, Fastest, Priced
from viiwork_core.clock import SystemClock
from viiwork_core.registry.guard import GuardedPolicy

FAST, SLOW = Score(100.0, 500.0), Score(100.0, 5000.0)
SESSION = "5e" * 16


def place(name: str, score: Score | None = FAST, *, local: bool = False, held: int | None = None) -> Candidate:
    return Candidate(name, local, 4, 4, rtt_ms=1.0, score=score, held_tokens=held)


def query(session: str | None = None, *, continues: bool = False) -> Query:
    return Query("m", session, 4000, continues=continues, typical=FAST)


@pytest.mark.parametrize(
    ("asked", "candidates", "rule"),
    [
        (query(), [place("a"), place("b", SLOW)], "the lowest price"),
        (query(), [place("a"), place("b", local=True)], "of 2 places within 1.25 times the lowest price, this node"),
        (query(), [place("a"), place("b")], "of 2 places within 1.25 times the lowest price, drawn by speed"),
        (
            query(SESSION, continues=True),
            [place("a"), place("b"), place("c", held=10)],
            "of 3 places within 1.25 times the lowest price, the one that holds most of the session",
        ),
        (
            query(SESSION, continues=True),
            [place("a"), place("b")],
            "of 2 places within 1.25 times the lowest price, the session's own by its hash",
        ),
        (query(SESSION, continues=True), [place("a"), place("warm", SLOW, held=4000)], "the lowest price"),
    ],
)
@pytest.mark.parametrize("policy", [Fastest(NoOptions()), CacheAware(NoOptions())])
def test_the_rule_that_decided(policy: Priced, asked: Query, candidates: list[Candidate], rule: str) -> None:
    first = policy.rank(asked, candidates, random.Random(3))[0]
    assert policy.explain(asked, candidates, first) == rule
    prices = policy.prices(asked, candidates)
    assert prices.keys() == {one.id for one in candidates}
    assert min(prices.values()) * 1.25 >= prices[first]


def test_a_place_that_was_tried_to_learn_of_it() -> None:
    policy, asked = Fastest(NoOptions()), replace(query(), typical=SLOW)
    candidates = [place("a"), place("new", None)]
    ranked = {policy.rank(asked, candidates, random.Random(seed))[0] for seed in range(200)}
    assert ranked == {"a", "new"}
    assert policy.explain(asked, candidates, "new") == "no score yet: tried, so that it earns one"


def test_where_nobody_has_a_score_least_busy_speaks() -> None:
    policy, asked = Fastest(NoOptions()), replace(query(), typical=None)
    candidates = [place("a", None), place("b", None, local=True)]
    assert policy.explain(asked, candidates, "b") == "this node"
    assert policy.prices(asked, candidates) == {}


def test_least_busy() -> None:
    policy = LeastBusy(NoOptions())
    assert policy.prices(query(), [place("a")]) == {}
    assert policy.explain(query(), [place("a")], "a") == "most free slots"
    held = [place("a"), place("b", held=1)]
    assert policy.explain(query(SESSION, continues=True), held, "b") == "it holds tokens of the session"
    assert policy.explain(query(SESSION, continues=True), [place("a")], "a") == "the session's own by its hash"


def test_a_policy_whose_words_fail_is_not_benched_for_them() -> None:
    class Mute(Fastest):
        def explain(self, query: Query, candidates: object, first: str) -> str:
            raise RuntimeError("no words")

    strikes: list[str] = []
    guarded = GuardedPolicy(Mute(NoOptions()), clock=SystemClock(), on_strike=strikes.append)
    reason = guarded.why("fastest", query(), [place("a")], "a")
    assert (reason.rule, reason.prices) == ("it could not say: RuntimeError: no words", {})
    assert strikes == []


def test_words_alone_are_enough() -> None:
    class Wordy(RoundRobin):
        def explain(self, query: Query, candidates: object, first: str) -> str:
            return f"it is the turn of {first}"

    guarded = GuardedPolicy(Wordy(NoOptions()), clock=SystemClock())
    reason = guarded.why("round_robin", query(), [place("a")], "a")
    assert (reason.rule, reason.prices) == ("it is the turn of a", {})


def test_a_policy_need_not_explain_itself() -> None:
    guarded = GuardedPolicy(RoundRobin(NoOptions()), clock=SystemClock())
    reason = guarded.why("round_robin", query(), [place("a")], "a")
    assert (reason.rule, reason.prices) == ("", {})


def test_a_price_without_end_is_left_out() -> None:
    class Dear(Fastest):
        def prices(self, query: Query, candidates: object) -> dict[str, float]:
            return {"a": 1.0, "b": math.inf, "c": math.nan}

    guarded = GuardedPolicy(Dear(NoOptions()), clock=SystemClock())
    places = [place("a"), place("b"), place("c")]
    assert guarded.why("fastest", query(), places, "a").prices == {"a": 1.0}
