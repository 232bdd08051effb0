"""What each built-in policy prefers."""

from __future__ import annotations

import random
from collections import Counter

from viiwork_core import Candidate, NoOptions, Query
from viiwork_core.builtin.policies import LeastBusy, RoundRobin


def place(
    name: str, *, local: bool = False, free: int = 1, rtt: float | None = None, held: int | None = None
) -> Candidate:
    return Candidate(name, local, 8, free, rtt_ms=rtt, held_tokens=held)


def rank(places: list[Candidate], session: str | None = None, seed: int = 0) -> list[str]:
    return list(LeastBusy(NoOptions()).rank(Query("m", session, 10), places, random.Random(seed)))


def test_without_a_session_local_then_room_then_the_shortest_way() -> None:
    places = [
        place("far", free=4, rtt=9.0),
        place("unknown", free=4),
        place("near", free=4, rtt=1.0),
        place("roomy", free=5, rtt=50.0),
        place("here", local=True, free=1),
    ]
    assert rank(places) == ["here", "roomy", "near", "far", "unknown"]


def test_equals_are_drawn_by_chance() -> None:
    places = [place(name) for name in "abcd"]
    first = Counter(rank(places, seed=seed)[0] for seed in range(400))
    assert set(first) == set("abcd")
    assert min(first.values()) > 50


def test_a_session_keeps_its_host_whatever_is_free_and_local() -> None:
    places = [place(name, free=2) for name in "abcd"]
    for session in map(str, range(50)):
        before = rank(places, session)
        changed = [place(c.id, local=c.id == before[-1], free=1 if c.id == before[0] else 8) for c in reversed(places)]
        assert rank(changed, session) == before


def test_sessions_spread_and_move_only_with_their_host() -> None:
    places = [place(name) for name in "abcd"]
    sessions = [f"s{n}" for n in range(400)]
    before = {session: rank(places, session)[0] for session in sessions}
    assert min(Counter(before.values()).values()) > 60
    after = {session: rank(places[:-1], session)[0] for session in sessions}
    assert all(after[session] == host for session, host in before.items() if host != "d")


def test_a_holder_of_the_sessions_tokens_comes_first() -> None:
    for session in map(str, range(20)):
        order = rank([place("a", held=0), place("b"), place("c", held=900), place("d", held=5)], session)
        assert set(order[:2]) == {"c", "d"}


def turns(policy: RoundRobin, places: list[str], count: int, model: str = "m") -> str:
    candidates = [place(name) for name in places]
    ranked = (policy.rank(Query(model, None, 1), candidates, random.Random(0)) for _ in range(count))
    return "".join(order[0] for order in ranked)


def test_round_robin_takes_turns() -> None:
    assert turns(RoundRobin(NoOptions()), ["b", "a", "c"], 7) == "abcabca"


def test_round_robin_turns_among_those_that_have_room() -> None:
    policy = RoundRobin(NoOptions())
    assert turns(policy, ["a", "b", "c"], 2) == "ab"
    assert turns(policy, ["a", "b"], 2) == "ab"
    assert turns(policy, ["a", "b", "c"], 3) == "cab"


def test_round_robin_over_hosts_and_backends_by_one_policy() -> None:
    policy = RoundRobin(NoOptions())
    picked = [turns(policy, hosts, 1) for _ in range(4) for hosts in (["a", "b"], ["x", "y"])]
    assert picked == ["a", "x", "b", "y"] * 2


def test_round_robin_does_not_remember_without_end() -> None:
    policy = RoundRobin(NoOptions())
    for n in range(5000):
        turns(policy, ["a"], 1, model=str(n))
    assert len(policy._used) == 4096
