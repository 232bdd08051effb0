"""What the policies that go by speed prefer."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest

from viiwork_core import Candidate, NoOptions, Policy, Query, Score
from viiwork_core.builtin.priced import CacheAware, Fastest

FAST, SLOW = Score(100.0, 500.0), Score(100.0, 5000.0)
PRICED = pytest.mark.parametrize("policy", [Fastest, CacheAware])


def place(name: str, score: Score | None = FAST, **known: object) -> Candidate:
    return replace(Candidate(name, False, 8, 4, rtt_ms=1.0, score=score), **known)  # type: ignore[arg-type]  # by name


def first(policy: type[Policy], query: Query, places: list[Candidate], draws: int = 300) -> Counter[str]:
    made = policy(NoOptions())
    rng = random.Random(7)
    return Counter(made.rank(query, places, rng)[0] for _ in range(draws))


def query(session: str | None = None, tokens: int = 4000, **known: object) -> Query:
    return replace(Query("m", session, tokens, typical=FAST), **known)  # type: ignore[arg-type]  # by name


@PRICED
def test_the_first_token_comes_first(policy: type[Policy]) -> None:
    assert set(first(policy, query(), [place("slow", SLOW), place("fast")])) == {"fast"}


@PRICED
def test_local_wins_among_equals_and_not_otherwise(policy: type[Policy]) -> None:
    assert set(first(policy, query(), [place("here", local=True), place("there")])) == {"here"}
    assert set(first(policy, query(), [place("here", SLOW, local=True), place("there")])) == {"there"}


@PRICED
def test_among_equal_hosts_the_faster_are_drawn_more_often(policy: type[Policy]) -> None:
    drawn = first(policy, query(), [place("a"), place("b"), place("c", Score(100.0, 600.0))], 3000)
    assert set(drawn) == {"a", "b", "c"}
    assert drawn["c"] < 0.8 * min(drawn["a"], drawn["b"])


@PRICED
def test_a_session_has_one_host_in_the_band(policy: type[Policy]) -> None:
    hosts = [place(name) for name in "abcd"] + [place("slow", SLOW)]
    for session in map(str, range(40)):
        chosen = first(policy, query(session), hosts, 5)
        assert len(chosen) == 1
        assert "slow" not in chosen


@PRICED
def test_a_session_stays_on_its_warm_slow_host(policy: type[Policy]) -> None:
    warm = place("warm", SLOW, held_tokens=3900)
    assert set(first(policy, query("s", continues=True), [place("fast"), warm])) == {"warm"}
    forgotten = replace(warm, held_tokens=0)
    assert set(first(policy, query("s", continues=True), [place("fast"), forgotten])) == {"fast"}


@PRICED
def test_one_request_in_twenty_teaches_a_host_without_a_score(policy: type[Policy]) -> None:
    hosts = [place("known", local=True), place("new", None)]
    assert 0.03 < first(policy, query(), hosts, 4000)["new"] / 4000 < 0.07
    assert (
        first(policy, query("s", continues=True), hosts, 400)["new"]
        == first(policy, query("s", continues=True), [place("known", local=True), place("new")], 400)["new"]
    )


@PRICED
def test_a_host_without_a_score_is_priced_at_the_median(policy: type[Policy]) -> None:
    drawn = first(policy, query(typical=SLOW), [place("known"), place("new", None)], 1000)
    assert drawn["new"] < 80
    assert drawn["known"] > 900


@PRICED
def test_without_any_score_a_session_still_has_one_host(policy: type[Policy]) -> None:
    hosts = [place(name, None) for name in "abcd"]
    bare = query("s", typical=None)
    assert len(first(policy, bare, hosts, 50)) == 1
    assert len(first(policy, query(None, typical=None), hosts, 50)) == 4


def test_a_replica_counts_where_its_import_was_measured() -> None:
    hosts = [place("cold"), place("replica", SLOW, replica_tokens=3900, import_ms=300.0)]
    asked = query("s", continues=True)
    assert set(first(CacheAware, asked, hosts)) == {"replica"}
    assert set(first(Fastest, asked, hosts)) == {"cold"}
    unmeasured = [hosts[0], replace(hosts[1], import_ms=None)]
    assert set(first(CacheAware, asked, unmeasured)) == {"cold"}


def test_who_waits_inside_an_engine_is_counted() -> None:
    hosts = [place("crowded", waiting=16), place("calm", Score(100.0, 700.0), waiting=0)]
    assert set(first(CacheAware, query("s"), hosts)) == {"calm"}


@PRICED
def test_the_order_of_the_candidates_says_nothing(policy: type[Policy]) -> None:
    hosts = [place("a"), place("b"), place("c", None), place("d", SLOW), place("e", local=True)]
    for session in (None, "s"):
        for seed in range(60):
            ranked = policy(NoOptions()).rank(query(session), hosts, random.Random(seed))
            again = policy(NoOptions()).rank(query(session), hosts[::-1], random.Random(seed))
            assert list(ranked) == list(again)
