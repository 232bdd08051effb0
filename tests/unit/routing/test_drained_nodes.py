"""Nodes that take no new work: others get it, and where there is no other the reason is told."""

from __future__ import annotations

import msgspec
import pytest
from router_scene import Places, here, there

from viiwork_core import Query
from viiwork_core.errors import ModelNotServed, NotFound
from viiwork_core.mesh.capacity import PeerView


def drains(places: Places, view: PeerView) -> None:
    """The peer reports that it drains: no room, no healthy backend."""
    models = tuple(msgspec.structs.replace(one, slots=one.busy, healthy_backends=0) for one in view.report.models)
    report = msgspec.structs.replace(view.report, models=models, draining=True)
    places.clock.advance(0.001)
    places.router.report(PeerView(view.member, report, places.now, 1.0))


def test_this_node_sends_its_requests_on() -> None:
    places = Places()
    places.backend()
    places.peer("b")
    places.local.closed = True
    assert there(places.offer(places.ticket())).member.node == "b"
    places.local.closed = False
    assert here(places.offer(places.ticket()))


def test_a_peer_gets_no_more() -> None:
    places = Places()
    places.backend()
    drains(places, places.peer("a", slots=4))
    assert here(places.offer(places.ticket()))
    assert places.router.spill_order(Query("m", None, 1), places.now) == []


def test_who_has_the_last_of_a_model_says_why_it_is_refused() -> None:
    places = Places()
    places.backend()
    drains(places, places.peer("b"))
    places.local.closed = True
    with pytest.raises(ModelNotServed) as told:
        places.offer(places.ticket())
    assert (told.value.status, told.value.retry_after) == (503, 5)
    assert told.value.message == 'model "m" takes no new requests on b, here, which drains'
    assert places.router.knows("m")
    with pytest.raises(NotFound):
        places.offer(places.ticket(model="nobody"))


def test_who_asks_for_a_drained_host_alone_is_told() -> None:
    places = Places()
    places.backend()
    drains(places, places.peer("b"))
    for pin in ("b", "here"):
        places.local.closed = pin == "here"
        with pytest.raises(ModelNotServed, match=f"takes no new requests on .*{pin}"):
            places.offer(places.ticket(pin=pin))


def test_who_waits_is_placed_elsewhere_or_told() -> None:
    places = Places()
    places.backend()
    running = here(places.offer(places.ticket()))
    waiting = places.ticket()
    assert places.offer(waiting) is None
    places.local.closed = True
    ((ticket, error),) = places.router.lost()
    assert ticket is waiting
    assert "drains" in error.message
    assert not places.book.idle(running.reservation.backend), "what runs goes on"
