"""Hosts that have refused or failed are passed over, as long as there is another one."""

from __future__ import annotations

import pytest
from router_scene import Places, here, there

from viiwork_core.engines.penalty import FIRST
from viiwork_core.routing.ticket import Here, Placement


def fails(places: Places, placement: Placement | None, silence: float = 0.0) -> None:
    """What was placed there fails; a peer has reported since."""
    if isinstance(placement, Here):
        places.book.failed(placement.reservation, begun=places.now, silence=silence)
        places.book.release(placement.reservation)
        return
    placement = there(placement)
    places.clock.advance(max(silence, 0.001))
    places.router.refused(placement, places.now, silence=silence)
    places.router.returned(placement)
    places.clock.advance(0.001)
    for view in places.router.reports():
        model = view.report.models[0]
        places.peer(view.member.node, slots=model.slots, busy=model.busy, backends=model.healthy_backends)


def placed(places: Places, **fields: object) -> str | None:
    """Where one more request goes; it has ended then."""
    placement = places.offer(ticket := places.ticket(**fields))  # type: ignore[arg-type]  # a ticket's fields
    if placement is None:
        places.router.withdraw(ticket)
        return None
    if isinstance(placement, Here):
        places.book.release(placement.reservation)
    else:
        places.router.returned(placement)
    return placement.name


def test_a_peer_that_refused_is_passed_over_though_it_reports_room() -> None:
    places = Places()
    places.peer("first", slots=4)
    places.peer("second", slots=4)
    fails(places, places.offer(places.ticket()))
    assert placed(places) == "second"
    places.clock.advance(FIRST)
    trial = there(places.offer(places.ticket()))
    assert trial.name == "first"
    assert placed(places) == "second", "one at a time"
    places.router.served(trial, places.now)
    assert placed(places) == "first"


def test_silence_is_remembered_for_as_long_as_it_lasted() -> None:
    places = Places()
    places.peer("first", slots=4)
    places.peer("second", slots=4)
    fails(places, places.offer(places.ticket()), silence=30.0)
    places.clock.advance(29.0)
    for node in ("first", "second"):
        places.peer(node, slots=4)
    assert placed(places) == "second"


def test_the_only_peer_is_asked_again() -> None:
    places = Places()
    places.peer("only", slots=4)
    fails(places, places.offer(places.ticket()))
    assert placed(places) == "only"


def test_another_peer_that_is_full_is_waited_for_and_one_that_is_sick_is_not() -> None:
    places = Places()
    places.peer("first", slots=4)
    fails(places, places.offer(places.ticket()))
    places.peer("second", slots=4, busy=4)
    assert placed(places) is None
    assert placed(places, pin="first") == "first", "a pin leaves no other"
    assert placed(places, tried={"second"}) == "first"
    places.clock.advance(0.001)
    places.peer("second", slots=0, backends=0)
    assert placed(places) == "first"


@pytest.mark.parametrize("busy", [0, 1])
def test_this_host_is_passed_over_like_any_other(busy: int) -> None:
    places = Places()
    places.backend(2)
    places.peer("zzz", slots=1, busy=busy)
    fails(places, here(places.offer(places.ticket())))
    assert placed(places) == (None if busy else "zzz")
    places.router.forget("zzz")
    assert placed(places) == "m/0"


def test_a_peer_is_left_alone_while_this_host_is_merely_full() -> None:
    places = Places()
    places.backend(1)
    places.peer("abc", slots=4)
    fails(places, places.offer(places.ticket()))
    running = here(places.offer(places.ticket()))
    assert placed(places) is None
    places.book.failed(running.reservation, begun=places.now, silence=0.0)
    assert placed(places) == "abc", "now there is no better one"


def test_a_penalty_concerns_one_model_and_one_process() -> None:
    places = Places()
    places.peer("first", slots=4)
    places.peer("second", slots=4)
    fails(places, places.offer(places.ticket()))
    places.peer("first", slots=4, model="n")
    places.peer("second", slots=4, model="n")
    assert placed(places, model="n") == "first"
    places.clock.advance(0.001)
    places.peer("first", slots=4, node_id="2")
    places.peer("second", slots=4)
    assert placed(places) == "first"


def test_what_a_peer_says_of_its_patience_is_known_and_whether_it_still_reports() -> None:
    places = Places()
    places.peer("peer", first_byte_s=120.0)
    placement = there(places.offer(places.ticket()))
    about = places.router.about(placement)
    assert about is not None
    assert about.first_byte_s == 120.0
    assert places.router.hears(placement, places.now)
    places.clock.advance(60)
    assert not places.router.hears(placement, places.now)
    places.peer("peer", node_id="2")
    assert not places.router.hears(placement, places.now), "that is another process"
    places.router.forget("peer")
    assert places.router.about(placement) is None


def test_a_restarted_peer_is_not_blamed_for_the_run_before() -> None:
    """A machine that lost its power says nothing, so that its forwards fail long after it is up again."""
    places = Places()
    places.peer("first", slots=4)
    places.peer("second", slots=4)
    old = there(places.offer(places.ticket()))
    places.clock.advance(1.0)
    places.peer("first", slots=4, node_id="2")
    places.peer("second", slots=4)
    places.router.refused(old, places.now, silence=30.0)
    places.router.returned(old)
    assert places.router.about(old) is None, "what the new run reports is not about that forward"
    assert placed(places) == "first"
