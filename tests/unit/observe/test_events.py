"""The activity log: bounded, in order, and never slowed down by who follows it."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from viiwork_core.observe.events import (
    BEHIND,
    LONGEST,
    MAX_SUBSCRIBERS,
    REPLAY_S,
    Event,
    EventLog,
    Subscriber,
    is_end,
    place_of,
)
from viiwork_core.testing.fake_clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def log(clock: FakeClock) -> EventLog:
    return EventLog(clock, history=100)


def messages(events: list[Event]) -> list[str]:
    return [event.message for event in events]


def test_a_request_is_told_when_it_is_placed_and_when_it_is_over(log: EventLog, clock: FakeClock) -> None:
    trail = log.request("qwen", "req-1")
    assert log.events() == []
    trail.placed("qwen/0")
    clock.advance(1.23)
    trail.ended("done", 1.23)
    assert [msgspec.to_builtins(event) for event in log.events()] == [
        {"t": 1_800_000_000, "type": "request", "message": "qwen → qwen/0", "rid": "req-1", "n": 1},
        {"t": 1_800_000_001, "type": "request", "message": "qwen → qwen/0 done (1.2s)", "rid": "req-1", "n": 2},
    ]


def test_each_place_that_is_tried_is_told(log: EventLog) -> None:
    trail = log.request("qwen", "req-1")
    trail.placed("qwen/0")
    trail.placed("peer cellar")
    trail.ended("aborted by client", 61.0)
    assert messages(log.events()) == [
        "qwen → qwen/0",
        "qwen → peer cellar",
        "qwen → peer cellar aborted by client (61.0s)",
    ]


def test_a_request_that_got_no_place_is_one_line(log: EventLog) -> None:
    log.request("qwen", "req-1").ended("refused", 20.04)
    assert messages(log.events()) == ["qwen refused (20.0s)"]


def test_of_a_backends_reason_the_first_line_is_told(log: EventLog) -> None:
    log.backend("qwen/0", "healthy", None)
    log.backend("qwen/0", "dead", "exit status 1\nlast line of the engine")
    log.backend("qwen/1", "dead", "x" * 1000)
    assert messages(log.events())[:2] == ["qwen/0 healthy", "qwen/0 dead: exit status 1"]
    assert [len(text) for text in messages(log.events())] == [14, 26, LONGEST]


def test_the_oldest_events_give_way(clock: FakeClock) -> None:
    log = EventLog(clock, history=3)
    for number in range(5):
        log.emit("system", str(number))
    assert messages(log.events()) == ["2", "3", "4"]


def test_a_subscriber_is_told_the_last_seconds_first(log: EventLog, clock: FakeClock) -> None:
    log.emit("system", "long ago")
    clock.advance(REPLAY_S + 1)
    log.emit("system", "just now")
    subscriber = log.subscribe()
    assert [(event.message, event.replay) for event in subscriber.past] == [("just now", True)]
    log.emit("system", "live")
    assert [(event.message, event.replay) for event in asyncio.run(subscriber.batch())] == [("live", False)]


def test_the_events_of_an_unfinished_request_are_told_whatever_their_age(clock: FakeClock) -> None:
    log = EventLog(clock, history=2)
    long = log.request("qwen", "long")
    long.placed("qwen/0")
    over = log.request("qwen", "over")
    over.placed("qwen/1")
    over.ended("done", 1)
    clock.advance(REPLAY_S + 1)
    log.emit("system", "a")
    log.emit("system", "b")
    assert messages(log.subscribe().past) == ["qwen → qwen/0", "a", "b"], "in order, though its ring is shorter"
    long.ended("done", 99)
    assert messages(log.subscribe().past) == ["b", "qwen → qwen/0 done (99.0s)"]


def test_two_requests_of_one_id_are_two(log: EventLog, clock: FakeClock) -> None:
    """A client may use an id twice at the same time."""
    first, second = log.request("qwen", "same"), log.request("qwen", "same")
    first.placed("qwen/0")
    second.placed("qwen/1")
    first.ended("done", 1)
    clock.advance(REPLAY_S + 1)
    assert messages(log.subscribe().past) == ["qwen → qwen/1"]


def test_a_slow_subscriber_is_dropped_and_the_others_go_on(log: EventLog) -> None:
    async def scene() -> None:
        slow, quick = log.subscribe(), log.subscribe()
        for number in range(BEHIND):
            log.emit("system", str(number))
        assert messages(await quick.batch()) == [str(number) for number in range(BEHIND)]
        log.emit("system", "one too many")
        assert slow.dropped.is_set()
        assert await slow.batch() == []
        assert messages(await quick.batch()) == ["one too many"]

    asyncio.run(scene())


def test_the_oldest_subscriber_gives_way_to_the_newest(log: EventLog) -> None:
    following = [log.subscribe() for _ in range(MAX_SUBSCRIBERS)]
    newest = log.subscribe()
    log.emit("system", "a")
    assert [one.dropped.is_set() for one in following] == [True] + [False] * (MAX_SUBSCRIBERS - 1)
    assert messages(asyncio.run(newest.batch())) == ["a"]


def test_who_left_makes_room(log: EventLog) -> None:
    following = [log.subscribe() for _ in range(MAX_SUBSCRIBERS)]
    log.leave(following[3])
    log.subscribe()
    assert not any(one.dropped.is_set() for one in following)


def test_closing_ends_whoever_follows_after_the_last_event(log: EventLog) -> None:
    async def told(subscriber: Subscriber[Event]) -> list[str]:
        found: list[str] = []
        while events := await subscriber.batch():
            found += messages(events)
        return found

    async def scene() -> None:
        subscriber = log.subscribe()
        following = asyncio.create_task(told(subscriber))
        log.emit("system", "stopping")
        log.close()
        assert await following == ["stopping"]
        assert not subscriber.dropped.is_set()
        assert await told(log.subscribe()) == []
        log.emit("system", "nobody follows any more")

    asyncio.run(scene())


def test_the_first_token_is_told_where_the_answer_is_streamed(log: EventLog, clock: FakeClock) -> None:
    trail = log.request("qwen", "req-1")
    trail.placed("qwen/0")
    trail.first_token(0.44)
    clock.advance(REPLAY_S + 1)
    assert messages([kept.event for kept in log.past()]) == ["qwen → qwen/0", "qwen → qwen/0 first token after 0.4s"]
    trail.ended("done", 1)
    assert messages(log.events())[-1] == "qwen → qwen/0 done (1.0s)"


@pytest.mark.parametrize("end", ["done", "aborted by client", "aborted", "failed", "refused", "lost"])
def test_an_end_is_told_from_what_comes_before_it(end: str) -> None:
    assert is_end(f"qwen → qwen/0 {end} (61.0s)")
    assert not is_end(f"qwen → {end}")
    assert not is_end(f"qwen → qwen/0 {end} (61.0s) first token after 0.4s")


def test_the_place_is_what_an_event_begins_with() -> None:
    for message in ("qwen → peer cellar", "qwen → peer cellar first token after 0.4s"):
        assert place_of(message) == "qwen → peer cellar"


def test_an_event_is_one_line_without_orders_to_a_terminal(log: EventLog) -> None:
    log.emit("system", "a\x1b[31m\nb")
    assert messages(log.events()) == ["a [31m b"]


def test_a_member_has_a_place_of_its_own(log: EventLog) -> None:
    member = log.subscribe("cellar")
    pages = [log.subscribe() for _ in range(MAX_SUBSCRIBERS + 3)]
    assert [one.dropped.is_set() for one in pages] == [True] * 3 + [False] * MAX_SUBSCRIBERS
    for number in range(3 * BEHIND):
        log.emit("system", str(number))
    assert not member.dropped.is_set()
    again = log.subscribe("cellar")
    assert member.dropped.is_set()
    log.leave(member)
    log.emit("system", "still told")
    assert messages(asyncio.run(again.batch())) == ["still told"]


def test_a_listener_is_told_at_once_and_last_that_it_is_over(log: EventLog) -> None:
    told: list[str | None] = []

    def listener(event: Event | None) -> None:
        told.append(event and event.message)

    log.listen(listener)
    log.emit("system", "a")
    log.ignore(listener)
    log.emit("system", "b")
    log.listen(listener)
    log.close()
    log.listen(listener)
    log.emit("system", "c")
    assert told == ["a", None, None]
