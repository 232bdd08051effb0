"""Does a routing policy keep the contract? Numbered clauses, each a plain async function over a PolicyCase.

    case = PolicyCase(policy=MyPolicy, options=MyOptions(...))
    assert not await check_policy(case)

Nothing is started and nothing is timed. The places and requests that the clauses use are the same each time.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from pydantic import ValidationError

from viiwork_core.contracts.options import NoOptions, PluginOptions
from viiwork_core.contracts.policy import Candidate, Outcome, Policy, Query, Score
from viiwork_core.errors import ViiworkError
from viiwork_core.testing.clauses import Breach, Clause, Verdict, blaming, breaches, judge, require, verdict
from viiwork_core.testing.effort import Effort, TooMuch, outside_calls
from viiwork_core.testing.odd_options import odd_blocks, refuses_unknown_keys

__all__ = [
    "POLICY_CLAUSES",
    "Breach",
    "Clause",
    "PolicyCase",
    "Verdict",
    "check_policy",
    "examine_policy",
    "judge",
]

ROUNDS = 40
FEW, MANY = 100, 1000
GROWTH = 25
"""How much more 1,000 candidates may cost than 100: sorting takes 15 times as much, all pairs take 100 times."""

HARDLY = 10_000
"""Steps that cost nothing, however often they are taken."""

MODEL = "tiny"
SESSION = "f00d" * 8


@dataclass(frozen=True)
class PolicyCase:
    """One policy class with the options to try it with."""

    policy: type[Policy]
    options: PluginOptions = field(default_factory=NoOptions)
    hosts: tuple[str, ...] = ("attic", "cellar", "study")
    """Ids that some of the candidates have: those that the options name, where they name any."""

    def made(self) -> Policy:
        """A fresh instance, which has seen nothing yet."""
        return self.policy(self.options)


def place(rng: random.Random, id_: str, *, free: int | None = None) -> Candidate:
    """A candidate of which much, or little, is known."""
    slots = rng.randint(1, 16)

    def perhaps(value: float) -> float | None:
        return value if rng.random() < 0.6 else None

    def count(most: int) -> int | None:
        return rng.choice((0, rng.randint(0, most))) if rng.random() < 0.6 else None

    return Candidate(
        id=id_,
        local=False,
        slots=slots,
        free=rng.randint(1, slots) if free is None else free,
        waiting=count(8),
        rtt_ms=perhaps(rng.uniform(0, 80)),
        held_tokens=count(30_000),
        score=Score(rng.choice((0.0, rng.uniform(0, 900))), rng.uniform(0.1, 9000)) if rng.random() < 0.6 else None,
        replica_tokens=count(30_000),
        import_ms=perhaps(rng.uniform(0, 5000)),
        wait_ms=rng.uniform(0, 60_000) if free == 0 else 0.0,
        crowd_ms=rng.choice((0.0, rng.uniform(0, 60_000))),
    )


def query(rng: random.Random, full: tuple[Candidate, ...] = ()) -> Query:
    """Any request."""
    session = rng.choice((None, SESSION))
    typical = rng.choice((None, Score(40.0, 900.0)))
    continues = session is not None and rng.random() < 0.5
    begins, size = session is not None and not continues and rng.random() < 0.5, rng.choice((0, 1, 900, 100_000))
    full = full if session else ()
    return Query(MODEL, session, size, begins=begins, continues=continues, typical=typical, full=full)


def requests(case: PolicyCase) -> Iterator[tuple[Query, list[Candidate]]]:
    """Requests, each with the places that have room: none, one, and up to 12."""
    rng = random.Random(20)
    for number in range(ROUNDS):
        names = [*case.hosts, *(f"host-{index}" for index in range(12))]
        ids = rng.sample(names, min(number, rng.randint(1, 12)))
        places = [place(rng, id_) for id_ in ids]
        if places and rng.random() < 0.5:
            places[0] = replace(places[0], local=True, rtt_ms=0.0)
        full = tuple(place(rng, f"full-{index}", free=0) for index in range(rng.randint(0, 2)))
        yield query(rng, full), places


def ranked(policy: Policy, asked: Query, places: Sequence[Candidate], seed: int = 0) -> list[str]:
    """The ranking, in which chance is that of `seed`."""
    with blaming(f"ranking {len(places)} places"):
        return list(policy.rank(asked, places, random.Random(seed)))


async def name_is_a_word(case: PolicyCase) -> None:
    name = getattr(case.policy, "name", None)
    require(isinstance(name, str) and re.fullmatch(r"[a-z][a-z0-9_-]*", name), f"{name!r} is not a lowercase word")
    require(issubclass(case.policy.Options, PluginOptions), "Options does not derive from PluginOptions")


async def bad_options_are_refused_politely(case: PolicyCase) -> None:
    refuses_unknown_keys(case.policy.Options, case.options)
    for what, block in odd_blocks(case.policy.Options, case.options):
        with blaming(f"{what}: neither a ValidationError nor a ViiworkError"), suppress(ValidationError, ViiworkError):
            case.policy(case.policy.Options.model_validate(block))


async def ranks_candidates_only(case: PolicyCase) -> None:
    policy = case.made()
    for asked, places in requests(case):
        ranking = ranked(policy, asked, places)
        known = {one.id for one in places}
        require(known.issuperset(ranking), f"ranks what is no candidate: {sorted(set(ranking) - known)}")
        require(len(set(ranking)) == len(ranking), f"ranks a candidate twice: {ranking}")


async def candidates_are_left_alone(case: PolicyCase) -> None:
    for asked, places in requests(case):
        before = list(places)
        ranking = ranked(case.made(), asked, places)
        require(places == before, "the list of candidates is another one afterwards")
        require(ranked(case.made(), asked, tuple(places)) == ranking, "a tuple is ranked otherwise than a list")


async def order_does_not_matter(case: PolicyCase) -> None:
    rng = random.Random(21)
    for asked, places in requests(case):
        ranking = ranked(case.made(), asked, places)
        for other in (places[::-1], rng.sample(places, len(places))):
            again = ranked(case.made(), asked, other)
            require(again == ranking, f"the same candidates in another order are ranked {again}, before {ranking}")


async def chance_is_the_generators(case: PolicyCase) -> None:
    state = random.getstate()
    try:
        for seed, (asked, places) in enumerate(requests(case)):
            random.seed(seed)
            first = ranked(case.made(), asked, places, seed)
            random.seed(seed + 1)
            second = ranked(case.made(), asked, places, seed)
            require(first == second, f"the same request with the same seed is ranked {first}, and then {second}")
    finally:
        random.setstate(state)


async def nothing_known_is_enough(case: PolicyCase) -> None:
    bare = [Candidate(f"host-{index}", local=False, slots=1, free=1) for index in range(3)]
    policy = case.made()
    for asked in (Query(MODEL, None, 0), Query(MODEL, SESSION, 10), Query(MODEL, SESSION, 10, continues=True)):
        require(ranked(policy, asked, []) == [], "ranks something where there is no candidate")
        ranked(policy, asked, bare)


async def cost_grows_with_the_candidates(case: PolicyCase) -> None:
    for asked in (Query(MODEL, None, 900), Query(MODEL, SESSION, 900)):
        few = _cost(case, asked, FEW, None)
        budget = GROWTH * few + HARDLY
        try:
            _cost(case, asked, MANY, budget)
        except TooMuch:
            problem = f"ranking {MANY} candidates takes over {budget} steps, and ranking {FEW} took {few}"
            raise AssertionError(problem) from None


def _cost(case: PolicyCase, asked: Query, count: int, budget: int | None) -> int:
    rng, effort = random.Random(22), Effort(budget)
    places = [place(rng, effort.id(f"host-{index}")) for index in range(count)]
    policy = case.made()
    effort.of(lambda: list(policy.rank(asked, places, random.Random(0))))
    return effort.count


async def rank_only_computes(case: PolicyCase) -> None:
    policy = case.made()
    for number, (asked, places) in enumerate(requests(case)):
        if number == 0:
            ranked(policy, asked, places)  # what is imported late is imported now
        reached = outside_calls(lambda asked=asked, places=places: ranked(policy, asked, places))  # type: ignore[misc]
        require(not reached, f"rank calls {', '.join(reached)}")


async def observe_never_throws(case: PolicyCase) -> None:
    policy = case.made()
    asked, places = next(one for one in requests(case) if len(one[1]) > 2)
    outcomes = [
        Outcome(MODEL, id_, session, status, prompt, cached, written, first)
        for id_ in (places[0].id, "gone", "")
        for session in (None, SESSION)
        for status in (200, 429, 499, 502)
        for prompt, cached, written, first in ((None, None, None, None), (0, 0, 0, 0.0), (900, 800, 12, 45.0))
    ]
    for outcome in outcomes:
        with blaming(f"observe({outcome})"):
            policy.observe(outcome)
    require({one.id for one in places}.issuperset(ranked(policy, asked, places)), "what it learnt spoils its ranking")


async def says_why(case: PolicyCase) -> None:
    policy = case.made()
    for asked, places in requests(case):
        for first in (one.id for one in places):
            with blaming(f"explain({first})"):
                words = policy.explain(asked, places, first)
            require(isinstance(words, str), f"explain returns {words!r}, which is no text")
        with blaming(f"prices of {len(places)} places"):
            prices = dict(policy.prices(asked, places))
        odd = {id_: price for id_, price in prices.items() if not isinstance(price, int | float) or price != price}
        require(not odd, f"prices that are no numbers: {odd}")
        require({one.id for one in places}.issuperset(prices), f"prices what is no candidate: {sorted(prices)}")


POLICY_CLAUSES: tuple[Clause[PolicyCase], ...] = (
    Clause(1, "the name is a lowercase word and Options derives from PluginOptions", name_is_a_word),
    Clause(2, "bad options are refused with ValidationError or ConfigError", bad_options_are_refused_politely),
    Clause(3, "a ranking holds candidates only, each once; it may leave some out", ranks_candidates_only),
    Clause(4, "candidates are read and not changed, in a list as in a tuple", candidates_are_left_alone),
    Clause(5, "the order of the candidates does not matter", order_does_not_matter),
    Clause(6, "all chance comes from the generator that is handed in", chance_is_the_generators),
    Clause(7, "nothing is ranked where there is nothing, and what is not known is no error", nothing_known_is_enough),
    Clause(8, "1,000 candidates cost no more than sorting them would", cost_grows_with_the_candidates),
    Clause(9, "rank reads no clock, touches no file or socket, and prints nothing", rank_only_computes),
    Clause(10, "observe never throws, and spoils no ranking", observe_never_throws),
    Clause(11, "explain returns text for any candidate, and prices numbers by id", says_why),
)


async def examine_policy(case: PolicyCase) -> list[Verdict]:
    """A verdict on each clause, in the clauses' order."""
    return [await verdict(clause, case) for clause in POLICY_CLAUSES]


async def check_policy(case: PolicyCase) -> list[Breach]:
    """Check all clauses and return what is wrong, in the clauses' order."""
    return breaches(await examine_policy(case))
