"""The policy kit finds nothing wrong with a sound policy, and each clause catches one that breaks it."""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field

from viiwork_core import Candidate, Outcome, PluginOptions, Policy, Query
from viiwork_core.builtin import viiwork_register_policy
from viiwork_core.testing.clauses import judge
from viiwork_core.testing.effort import Effort, TooMuch, outside_calls
from viiwork_core.testing.policy_kit import POLICY_CLAUSES, PolicyCase, check_policy


class SoundOptions(PluginOptions):
    share: float = Field(default=0.1, ge=0, le=1)


class Sound(Policy):
    """By name, and now and then by chance."""

    name = "sound"
    Options: ClassVar[type[PluginOptions]] = SoundOptions

    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        ids = sorted(candidate.id for candidate in candidates)
        if rng.random() < 0.1:
            rng.shuffle(ids)
        return ids


class Shouting(Sound):
    name = "Sound Policy"


class TakesAnything(Sound):
    class Options(SoundOptions):
        model_config: ClassVar[Any] = {"extra": "ignore"}


class Trusts(Sound):
    """Divides by what it is told."""

    def __init__(self, options: PluginOptions) -> None:
        super().__init__(options)
        assert isinstance(options, SoundOptions)
        self.every = 1 / options.share


class RanksStrangers(Sound):
    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        return [*super().rank(query, candidates, rng), "the-one-that-was-best-yesterday"]


class RanksTheFull(Sound):
    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        return [place.id for place in (*query.full, *candidates)]


class RanksTwice(Sound):
    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        return [*super().rank(query, candidates, rng)] * 2


class Picky(Sound):
    """Rather waits than goes where the session is not: that is a policy too."""

    name = "picky"

    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        return [place.id for place in sorted(candidates, key=lambda one: one.id) if place.held_tokens]


class RanksNobody(Sound):
    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        return super().rank(query, candidates, rng) or [query.model]


class SortsInPlace(Sound):
    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        if isinstance(candidates, list):
            candidates.sort(key=lambda one: one.id)
        return super().rank(query, candidates, rng)


class FirstComeFirst(Sound):
    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        return [place.id for place in sorted(candidates, key=lambda one: -one.free)]


class DrawsInOrder(Sound):
    """Right by the generator, and it falls otherwise on the same candidates in another order."""

    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        draws = {place.id: rng.random() for place in candidates}
        return sorted(draws, key=lambda id_: draws[id_])


class ItsOwnDice(Sound):
    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        ids = sorted(candidate.id for candidate in candidates)
        random.shuffle(ids)
        return ids


class KnowsTheFigures(Sound):
    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        return [place.id for place in sorted(candidates, key=lambda one: (one.rtt_ms / one.free, one.id))]  # type: ignore[operator]


class NeedsOne(Sound):
    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        best = min(candidates, key=lambda one: (-one.free, one.id)).id
        return [best, *(id_ for id_ in super().rank(query, candidates, rng) if id_ != best)]


class EachWithEach(Sound):
    """Counts in how many comparisons a candidate comes out ahead."""

    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        wins = {one.id: sum((one.free, one.id) > (other.free, other.id) for other in candidates) for one in candidates}
        return sorted(wins, key=lambda id_: -wins[id_])


class LooksThemUp(Sound):
    """No loop of its own is nested: the list does it."""

    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        ids = [str(place.id) for place in candidates]
        return sorted((place.id for place in candidates), key=lambda id_: (candidates[ids.index(id_)].free, id_))


class LooksAtTheClock(Sound):
    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        self.asked = time.monotonic()
        return super().rank(query, candidates, rng)


class ReadsAFile(Sound):
    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        self.last = Path("/dev/null").read_text()
        return super().rank(query, candidates, rng)


class Logs(Sound):
    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        logging.getLogger("policy").warning("ranking")
        return super().rank(query, candidates, rng)


class AddsUp(Sound):
    def observe(self, outcome: Outcome) -> None:
        self.total = getattr(self, "total", 0.0) + outcome.first_token_ms  # type: ignore[operator]


class Remembers(Sound):
    """Ranks whoever answered, there or not."""

    def __init__(self, options: PluginOptions) -> None:
        super().__init__(options)
        self.good: list[str] = []

    def observe(self, outcome: Outcome) -> None:
        self.good.append(outcome.candidate)

    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        return [*dict.fromkeys((*self.good, *super().rank(query, candidates, rng)))]


class KnowsOne(Sound):
    def explain(self, query: Query, candidates: Sequence[Candidate], first: str) -> str:
        return {"attic": "it is warm there"}[first]


class SaysNothing(Sound):
    def explain(self, query: Query, candidates: Sequence[Candidate], first: str) -> str:
        return None  # type: ignore[return-value]


class PricesStrangers(Sound):
    def prices(self, query: Query, candidates: Sequence[Candidate]) -> Mapping[str, float]:
        return {"the-one-that-was-best-yesterday": 1.0}


class HasNoPrice(Sound):
    def prices(self, query: Query, candidates: Sequence[Candidate]) -> Mapping[str, float]:
        return {one.id: one.rtt_ms for one in candidates}  # type: ignore[misc]


BROKEN: list[tuple[int, type[Sound], str]] = [
    (1, Shouting, "lowercase word"),
    (2, TakesAnything, "unknown key is accepted"),
    (2, Trusts, "ZeroDivisionError"),
    (3, RanksStrangers, "no candidate: ['the-one-that-was-best-yesterday']"),
    (3, RanksTheFull, "no candidate: ['full-"),
    (3, RanksTwice, "twice"),
    (4, SortsInPlace, "another one afterwards"),
    (5, FirstComeFirst, "in another order"),
    (5, DrawsInOrder, "in another order"),
    (6, ItsOwnDice, "with the same seed"),
    (7, KnowsTheFigures, "TypeError"),
    (7, NeedsOne, "ranking 0 places"),
    (7, RanksNobody, "where there is no candidate"),
    (8, EachWithEach, "ranking 1000 candidates"),
    (8, LooksThemUp, "ranking 1000 candidates"),
    (9, LooksAtTheClock, "time.monotonic"),
    (9, ReadsAFile, "open"),
    (9, Logs, "time.time"),
    (10, AddsUp, "TypeError"),
    (10, Remembers, "spoils"),
    (11, KnowsOne, "KeyError"),
    (11, SaysNothing, "None, which is no text"),
    (11, PricesStrangers, "no candidate: ['the-one-that-was-best-yesterday']"),
    (11, HasNoPrice, "no numbers"),
]


def case(policy: type[Policy]) -> PolicyCase:
    return PolicyCase(policy, policy.Options())


@pytest.mark.parametrize("policy", [Sound, Picky, *viiwork_register_policy()], ids=lambda policy: policy.name)
def test_these_policies_keep_all_clauses(policy: type[Policy]) -> None:
    assert asyncio.run(check_policy(case(policy))) == []


def test_clauses_are_numbered_from_one() -> None:
    assert [one.number for one in POLICY_CLAUSES] == list(range(1, len(POLICY_CLAUSES) + 1))


def test_each_clause_has_a_policy_that_breaks_it() -> None:
    assert {number for number, _, _ in BROKEN} == {one.number for one in POLICY_CLAUSES}


@pytest.mark.parametrize(("number", "policy", "told"), BROKEN)
def test_a_broken_policy_is_found(number: int, policy: type[Sound], told: str) -> None:
    clause = next(one for one in POLICY_CLAUSES if one.number == number)
    (breach,) = asyncio.run(judge(clause, case(policy)))
    assert breach.clause == number
    assert told in breach.problem


def test_the_kit_leaves_the_common_generator_alone() -> None:
    random.seed(7)
    expected = random.random()
    random.seed(7)
    asyncio.run(check_policy(case(Sound)))
    assert random.random() == expected


def quick(places: Sequence[str]) -> list[str]:
    return sorted(places)


@pytest.mark.parametrize("call", [quick, lambda places: [one for one in places if one in places]])
def test_effort_is_counted_and_not_timed(call: Callable[[Sequence[str]], list[str]]) -> None:
    def cost() -> int:
        effort = Effort()
        places = [effort.id(f"host-{index}") for index in range(50)]
        effort.of(lambda: call(places))
        return effort.count

    assert cost() == cost() > 50


def test_effort_has_a_budget() -> None:
    effort = Effort(budget=100)
    with pytest.raises(TooMuch):
        effort.of(lambda: sum(number for number in range(10**9)))


def test_what_only_computes_reaches_nothing_outside() -> None:
    assert outside_calls(lambda: sorted(str(number) for number in range(3))) == []
    assert outside_calls(lambda: (time.time(), Path("/dev/null").exists())) == ["posix.stat", "time.time"]
