"""What the contract asks of every policy, asked of the built-in ones."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viiwork_core import Candidate, Outcome, Policy, Query, Score
from viiwork_core.builtin import viiwork_register_policy

scores = st.none() | st.builds(Score, st.floats(0, 1e6), st.floats(0.001, 1e6))
candidates = st.builds(
    Candidate,
    id=st.text(min_size=1, max_size=20),
    local=st.booleans(),
    slots=st.integers(1, 64),
    free=st.integers(1, 64),
    waiting=st.none() | st.integers(0, 100),
    rtt_ms=st.none() | st.floats(0, 1e4),
    held_tokens=st.none() | st.integers(0, 1 << 20),
    score=scores,
    replica_tokens=st.none() | st.integers(0, 1 << 20),
    import_ms=st.none() | st.floats(0, 1e6),
)
places = st.lists(candidates, max_size=50, unique_by=lambda candidate: candidate.id)
queries = st.builds(
    Query,
    model=st.text(),
    session=st.none() | st.text(),
    prompt_tokens=st.integers(0, 1 << 20),
    continues=st.booleans(),
    typical=scores,
)
policies = pytest.mark.parametrize("policy", viiwork_register_policy(), ids=lambda policy: policy.name)


def ranked(policy: type[Policy], query: Query, given_places: Sequence[Candidate], seed: int = 0) -> list[str]:
    return list(policy(policy.Options()).rank(query, given_places, random.Random(seed)))


@policies
@given(query=queries, among=places)
def test_a_ranking_is_an_order_of_the_candidates(policy: type[Policy], query: Query, among: list[Candidate]) -> None:
    before = list(among)
    assert sorted(ranked(policy, query, among)) == sorted(candidate.id for candidate in among)
    assert among == before


@policies
@given(query=queries, among=places, seed=st.integers(0, 1000))
def test_all_chance_comes_from_the_generator(
    policy: type[Policy], query: Query, among: list[Candidate], seed: int
) -> None:
    random.seed(seed)
    first = ranked(policy, query, among, seed)
    random.seed(seed + 1)
    assert ranked(policy, query, tuple(among), seed) == first


@policies
def test_outcomes_are_taken_whatever_is_unknown(policy: type[Policy]) -> None:
    made = policy(policy.Options())
    made.observe(Outcome("m", "gone", None, 499))
    assert list(made.rank(Query("m", "s", 1), [Candidate("a", True, 1, 1)], random.Random(0))) == ["a"]
