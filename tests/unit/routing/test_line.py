"""The line: who stands in it, and how long it takes."""

from __future__ import annotations

import pytest
from router_scene import Places

from viiwork_core.errors import QueueFull
from viiwork_core.routing.candidates import Candidates
from viiwork_core.routing.line import LONGEST_RETRY, MOST_TOLD, Serving, estimate_s, retry_after


@pytest.mark.parametrize(
    ("position", "hosts", "seconds"),
    [
        (1, [(4, 8.0)], 2.0),
        (6, [(4, 8.0)], 12.0),
        (1, [(1, 10.0), (1, 10.0)], 5.0),
        (3, [(2, 4.0), (1, 2.0)], 3.0),
        (2, [(2, 4.0), (2, None)], 2.0),
        (1, [(4, None)], None),
        (1, [(0, 8.0)], None),
        (1, [], None),
    ],
)
def test_an_estimate_is_the_service_time_by_the_place_over_the_slots(
    position: int, hosts: list[Serving], seconds: float | None
) -> None:
    assert estimate_s(position, hosts) == seconds


@pytest.mark.parametrize(
    ("estimate", "seconds"), [(None, 2), (0.1, 2), (2.1, 3), (59.0, 59), (1e9, LONGEST_RETRY), (float("inf"), 600)]
)
def test_a_client_is_told_at_least_two_seconds(estimate: float | None, seconds: int) -> None:
    assert retry_after(estimate) == seconds


def test_the_line_tells_place_time_and_estimate() -> None:
    places = Places()
    places.peer("a", slots=2, busy=2, service_s=6.0)
    for name in ("one", "two", "three"):
        assert places.offer(places.ticket(request=name)) is None
    places.clock.advance(1.5)
    found = places.router.waiting("m", places.now)
    assert [(one.request, one.position, one.estimate_s) for one in found] == [
        ("one", 1, 3.0),
        ("two", 2, 6.0),
        ("three", 3, 9.0),
    ]
    assert 1.5 <= found[2].waited_s < found[0].waited_s < 1.6
    assert places.router.waited_for() == ("m",)


def test_a_long_line_is_not_told_whole() -> None:
    places = Places(queue_max=2 * MOST_TOLD)
    places.peer("a", slots=1, busy=1)
    for _ in range(MOST_TOLD + 5):
        places.offer(places.ticket())
    assert len(places.router.waiting("m", places.now)) == MOST_TOLD
    assert places.router.waiting("m", places.now)[0].estimate_s is None


def test_the_estimate_of_a_pinned_request_is_its_host_s() -> None:
    places = Places()
    places.peer("slow", slots=1, busy=1, service_s=30.0)
    places.peer("fast", slots=4, busy=4, service_s=2.0)
    places.offer(places.ticket(request="pinned", pin="slow"))
    places.offer(places.ticket(request="free"))
    pinned, free = places.router.waiting("m", places.now)
    assert pinned.estimate_s == 30.0
    assert free.estimate_s == pytest.approx(2 / (1 / 30 + 2))


def test_a_full_queue_says_when_a_new_one_at_its_end_would_be_served() -> None:
    places = Places(queue_max=3)
    places.peer("a", slots=2, busy=2, service_s=20.0)
    for _ in range(3):
        places.offer(places.ticket())
    with pytest.raises(QueueFull) as full:
        places.offer(places.ticket())
    assert full.value.retry_after == 40


def test_this_host_s_own_times_count_too() -> None:
    places = Places(candidates=lambda local: Candidates(local, service_of=lambda _: 5.0))
    places.backend(2)
    places.offer(places.ticket())
    places.offer(places.ticket())
    places.offer(places.ticket())
    (waiting,) = places.router.waiting("m", places.now)
    assert waiting.estimate_s == 2.5
