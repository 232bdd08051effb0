"""A member's events as this node keeps them: checked, known once, and ended when the member is lost from sight."""

from __future__ import annotations

import json
from typing import Any

import pytest

from viiwork_core.mesh.mirror import KEPT, LONGEST_MESSAGE, UNFINISHED, Mirror, read_event
from viiwork_core.observe.events import REPLAY_S, Event
from viiwork_core.testing.fake_clock import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def mirror(clock: FakeClock) -> Mirror:
    return Mirror(clock)


def request(n: int, rid: str, message: str = "m → m/0") -> Event:
    return Event(1, "request", message, rid, n=n)


def messages(mirror: Mirror) -> list[str]:
    return [kept.event.message for kept in mirror.past()]


def told(**fields: Any) -> bytes:
    return json.dumps({"t": 1, "type": "system", "message": "here", **fields}).encode()


def test_a_member_cannot_say_whose_event_it_is() -> None:
    event = read_event(told(hostname="other", node_id="viiwork-1", addr="1.2.3.4:1", rid="r", n=7))
    assert event == Event(1, "system", "here", "r", n=7)


@pytest.mark.parametrize(
    "fields",
    [
        {"t": -1},
        {"t": "1"},
        {"t": 1 << 50},
        {"type": "html"},
        {"message": 1},
        {"message": "x" * 20_000},
        {"rid": "a b"},
        {"rid": "x" * 129},
        {"rid": "r\n"},
        {"n": -1},
        {"replay": "yes"},
    ],
)
def test_what_no_node_would_say_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="malformed event"):
        read_event(told(**fields))


@pytest.mark.parametrize("line", [b"", b"[]", b"{", b"\xff", b"[" * 5000])
def test_what_is_no_event_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="malformed event"):
        read_event(line)


def test_words_are_put_on_one_line_and_cut() -> None:
    assert read_event(told(message="a\x1b[2J\r\nb\u202e")).message == "a [2J  b "
    assert len(read_event(told(message="ä" * 5000)).message) == LONGEST_MESSAGE


def test_the_past_is_the_last_seconds_and_what_runs(mirror: Mirror, clock: FakeClock) -> None:
    mirror.take(request(1, "long"))
    mirror.take(request(2, "short"))
    mirror.take(request(3, "short", "m → m/0 done (1.0s)"))
    clock.advance(REPLAY_S + 1)
    mirror.take(Event(2, "system", "now", n=4))
    assert messages(mirror) == ["m → m/0", "now"]
    assert all(kept.event.replay for kept in mirror.past())


def test_an_event_that_came_late_is_as_old_as_it_is(mirror: Mirror) -> None:
    mirror.take(Event(1, "system", "long ago", n=1), REPLAY_S + 1)
    mirror.take(Event(1, "system", "just now", n=2), 5.0)
    assert messages(mirror) == ["just now"]


def test_what_is_told_again_is_no_news(mirror: Mirror) -> None:
    assert mirror.take(request(1, "a"))
    mirror.begin()
    assert not mirror.take(request(1, "a"))
    assert mirror.take(request(2, "b"))
    assert mirror.caught_up() == []
    assert messages(mirror) == ["m → m/0", "m → m/0"]


def test_a_request_that_ended_while_nobody_listened_gets_an_end(mirror: Mirror, clock: FakeClock) -> None:
    mirror.begin()
    mirror.take(request(1, "runs"))
    mirror.take(request(2, "ended"))
    mirror.take(request(3, "ended", "m → m/0 first token after 0.5s"))
    assert mirror.caught_up() == []
    clock.advance(60)
    mirror.begin()
    mirror.take(request(1, "runs"))
    (end,) = mirror.caught_up()
    assert (end.rid, end.message) == ("ended", "m → m/0 lost (60.0s)")
    assert [one.rid for one in mirror.over()] == ["runs"]
    assert mirror.over() == []


def test_what_is_kept_is_bounded(mirror: Mirror) -> None:
    for number in range(1, 3 * KEPT):
        mirror.take(Event(1, "system", str(number), n=number))
    assert len(mirror.past()) == KEPT
    for number in range(2 * UNFINISHED):
        for place in range(100):
            mirror.take(request(0, f"r{number}", f"m → m/{place}"))
    assert len(mirror.over()) == UNFINISHED
    assert len(mirror.past()) <= KEPT
