"""The queue with keys: fair between them by weight, first in, first out within one, and nobody fills it for all."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from viiwork_core import Address
from viiwork_core.contracts.policy import Query
from viiwork_core.engines.slots import Reservation
from viiwork_core.errors import QueueFull
from viiwork_core.routing.queue import Queue
from viiwork_core.routing.ticket import Here, Placement, Ticket

PLACE = Here(Reservation("m/0", "m", 1, Address("127.0.0.1", 1), (0,)))
KEYS = {"a": 1, "b": 2, "c": 5}


def ticket(
    key: str = "", *, share: int | None = None, weight: int = 1, at: float = 0.0, pin: str | None = None
) -> Ticket:
    """One that waits for model m and came at `at`."""
    shared = KEYS.get(key, 1) if share is None else share
    return Ticket(Query("m", None, 1), weight, deadline=at + 20.0, pin=pin, key=key, share=shared)


def take(queue: Queue, number: int = 1) -> list[Ticket]:
    """Room comes for so many."""
    left = [number]

    def place(_: Ticket) -> Placement | None:
        left[0] -= 1
        return PLACE if left[0] >= 0 else None

    return [one for one, _ in queue.settle("m", place)]


def filled(*tickets: Ticket, bound: int = 10_000) -> Queue:
    queue = Queue(bound)
    for one in tickets:
        queue.add(one)
    return queue


def names(tickets: list[Ticket]) -> str:
    return "".join(one.key for one in tickets)


def test_a_newcomer_with_a_key_of_its_own_is_next_but_one() -> None:
    queue = filled(*(ticket("a", at=n) for n in range(10)))
    late = ticket("b", share=1, at=11)
    queue.add(late)
    assert queue.position(late) == 2
    assert names(take(queue, 11)) == "abaaaaaaaaa"


def test_turns_are_shared_by_weight() -> None:
    queue = filled(*(ticket(key, at=n) for n in range(100) for key in KEYS))
    assert Counter(names(take(queue, 80))) == {"a": 10, "b": 20, "c": 50}


def test_one_at_a_time_makes_the_same_order_as_all_at_once() -> None:
    whole = filled(*(ticket(key, at=n) for n in range(20) for key in KEYS))
    single = filled(*(ticket(key, at=n) for n in range(20) for key in KEYS))
    assert names(take(whole, 60)) == names([one for _ in range(60) for one in take(single)])


def test_slots_are_shared_and_not_requests() -> None:
    heavy = [ticket("a", weight=4, at=n) for n in range(40)]
    light = [ticket("b", share=1, at=n) for n in range(40)]
    assert Counter(names(take(filled(*heavy, *light), 30))) == {"a": 6, "b": 24}


def test_who_was_away_has_saved_up_nothing() -> None:
    queue = filled(*(ticket("a", at=n) for n in range(50)))
    take(queue, 30)
    for n in range(20):
        queue.add(ticket("b", share=1, at=100 + n))
    assert Counter(names(take(queue, 20))) == {"a": 10, "b": 10}


def test_a_line_that_runs_empty_for_a_moment_does_not_begin_anew() -> None:
    """With one request at a time, "a" must not be first again each time that its only ticket is placed."""
    queue = filled(*(ticket("b", share=1, at=n) for n in range(10)))
    served = ""
    for n in range(10):
        queue.add(ticket("a", weight=2, at=100 + n))
        served += names(take(queue, 2))
    assert served.count("a") <= served.count("b"), served


def test_who_leaves_has_used_no_turn() -> None:
    queue = filled(
        *(first := [ticket("a", at=n) for n in range(5)]), *(ticket("b", share=1, at=10 + n) for n in range(5))
    )
    for one in first[:4]:
        queue.remove(one)
    assert names(take(queue, 3)) == "abb"


def test_pins_hold_up_nobody_else_and_keep_the_order() -> None:
    pinned = [ticket("a", at=n, pin="x") for n in range(3)]
    queue = filled(*pinned, ticket("b", share=1, at=5), ticket("a", at=6))
    done = queue.settle("m", lambda one: None if one.pin else PLACE)
    assert names([one for one, _ in done]) == "ba"
    assert queue.tickets("m", 9) == pinned


# A full line


def test_a_full_line_makes_room_for_a_key_with_fewer() -> None:
    greedy = [ticket("a", at=n) for n in range(4)]
    queue = filled(*greedy, bound=4)
    with pytest.raises(QueueFull):
        queue.add(ticket("a", at=9))
    queue.add(other := ticket("b", share=1, at=9))
    ((ousted, error),) = queue.ousted()
    assert ousted is greedy[-1]
    assert error.retry_after
    assert queue.ousted() == []
    assert queue.length("m") == 4
    queue.add(ticket("b", share=1, at=9))
    assert queue.ousted()[0][0] is greedy[-2]
    with pytest.raises(QueueFull):
        queue.add(ticket("b", share=1, at=9))
    assert other in queue.tickets("m", 9)


def test_who_gave_way_and_left_is_not_told_again() -> None:
    greedy = [ticket("a", at=n) for n in range(2)]
    queue = filled(*greedy, bound=2)
    queue.add(ticket("b", share=1))
    queue.remove(greedy[1])
    assert queue.ousted() == []


def test_a_heavier_key_may_have_more_of_a_full_line() -> None:
    queue = filled(*(ticket("c", at=n) for n in range(5)), bound=6)
    queue.add(ticket("a"))
    with pytest.raises(QueueFull):
        queue.add(ticket("a"))


# Any order of events

EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from(["a", "b", "c"]), st.integers(1, 3)),
        st.tuples(st.just("take"), st.integers(1, 4), st.just(0)),
        st.tuples(st.just("leave"), st.integers(0, 30), st.just(0)),
        st.tuples(st.just("expire"), st.integers(0, 30), st.just(0)),
    ),
    max_size=80,
)


@given(events=EVENTS, bound=st.integers(0, 12))
@settings(deadline=None)
def test_nobody_is_lost_and_a_key_is_served_in_order(events: list[tuple[str, object, int]], bound: int) -> None:
    queue, waiting = Queue(bound), list[Ticket]()
    for now, (what, one, more) in enumerate(events):
        if what == "add":
            coming = ticket(str(one), weight=more, at=now)
            try:
                queue.add(coming)
            except QueueFull:
                assert len(waiting) >= bound
                continue
            waiting.append(coming)
            for ousted, _ in queue.ousted():
                assert ousted.key != coming.key
                waiting.remove(ousted)
        elif what == "take":
            expected = queue.tickets("m", int(str(one)))
            placed = take(queue, int(str(one)))
            assert placed == expected, "the line tells who is next"
            for served in placed:
                assert served is next(other for other in waiting if other.key == served.key), "it overtook its own"
                waiting.remove(served)
        elif what == "leave" and waiting:
            queue.remove(waiting.pop(int(str(one)) % len(waiting)))
        elif what == "expire":
            late = queue.expire(float(str(one)))
            assert {id(gone) for gone in late} == {id(gone) for gone in waiting if gone.deadline <= float(str(one))}
            waiting = [other for other in waiting if other not in late]
        assert len(queue) == queue.length("m") == len(waiting) <= max(bound, 0)
        assert queue.next_deadline() == min((other.deadline for other in waiting), default=None)
        assert sorted(map(id, queue.tickets("m", 99))) == sorted(map(id, waiting))
        assert [queue.position(other) for other in queue.tickets("m", 99)] == list(range(1, len(waiting) + 1))


@given(rounds=st.lists(st.integers(0, 3), min_size=1, max_size=60))
@settings(deadline=None)
def test_nobody_starves_behind_a_flood(rounds: list[int]) -> None:
    """However many another key sends, a waiting ticket is placed within as many turns as the weights say."""
    queue = filled(*(ticket("c", at=n) for n in range(20)))
    queue.add(waits := ticket("a", at=20))
    turns = 0
    for more in (*rounds, *([3] * 60)):
        for _ in range(more):
            queue.add(ticket("c", at=21 + turns))
        (served,) = take(queue) or (waits,)
        if served is waits:
            break
        turns += 1
    assert turns <= KEYS["c"]


@given(
    shares=st.lists(st.integers(1, 9), min_size=2, max_size=5),
    weights=st.lists(st.integers(1, 3), min_size=1, max_size=5),
)
@settings(deadline=None, max_examples=50)
def test_in_the_long_run_each_gets_its_share(shares: list[int], weights: list[int]) -> None:
    """While all keep waiting, what two keys got over their weights never differs by more than one ticket of each."""
    keys = {f"k{number}": share for number, share in enumerate(shares)}
    queue = Queue(10_000)
    for number in range(60):
        for key, share in keys.items():
            queue.add(ticket(key, share=share, weight=weights[number % len(weights)], at=number))
    got: Counter[str] = Counter()
    for _ in range(60):
        (served,) = take(queue)
        got[served.key] += served.weight
        normal = [got[key] / share for key, share in keys.items()]
        largest = max(weights)
        apart = max(largest / share for share in shares) * 2
        assert max(normal) - min(normal) <= apart + 1e-9


def test_without_keys_it_is_first_in_first_out() -> None:
    tickets = [ticket(at=n, weight=1 + n % 3) for n in range(50)]
    assert take(filled(*tickets), 50) == tickets
