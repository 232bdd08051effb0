"""Requests for a model that is being taken down here."""

from __future__ import annotations

from dataclasses import replace

import pytest
from router_scene import Places, there

from viiwork_core.engines.states import BackendState
from viiwork_core.errors import ModelNotServed, NotFound

PARKED, STOPPED = BackendState.PARKED, BackendState.STOPPED


def lead(places: Places, goal: BackendState, state: BackendState = BackendState.DRAINING) -> None:
    places.book.see(replace(places.book.view("m/0"), state=state, goal=goal))


@pytest.mark.parametrize(("goal", "error"), [(PARKED, ModelNotServed), (STOPPED, NotFound)])
def test_who_waits_is_told_at_once(goal: BackendState, error: type[Exception]) -> None:
    places = Places()
    places.backend(1)
    places.offer(places.ticket())
    waiting = places.ticket()
    assert places.offer(waiting) is None
    lead(places, goal)
    assert places.settle() == []
    ((ticket, told),) = places.router.lost()
    assert ticket is waiting
    assert isinstance(told, error)
    with pytest.raises(error):
        places.offer(places.ticket())


def test_a_parked_model_is_refused_for_now_and_named() -> None:
    places = Places()
    places.backend(1)
    places.backend(1, model="other")
    lead(places, PARKED, PARKED)
    with pytest.raises(ModelNotServed, match=r'^model "m" is parked on here$') as caught:
        places.offer(places.ticket())
    assert (caught.value.status, caught.value.retry_after) == (503, 5)
    assert places.local.models() == ("other",)


def test_a_peer_serves_what_is_parked_here() -> None:
    places = Places()
    places.backend(1)
    places.peer("peer")
    lead(places, PARKED, PARKED)
    assert there(places.offer(places.ticket())).member.node == "peer"
    with pytest.raises(ModelNotServed):
        places.offer(places.ticket(pin="here"))


def test_who_waits_for_a_restart_goes_on_waiting() -> None:
    places = Places()
    places.backend(1)
    lead(places, BackendState.STARTING)
    assert places.offer(places.ticket()) is None
    assert places.router.lost() == []
