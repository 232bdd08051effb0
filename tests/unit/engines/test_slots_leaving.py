"""The slot book while backends come and go."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from viiwork_core import Address
from viiwork_core.engines.slots import SlotBook, SlotState
from viiwork_core.engines.states import BackendState, BackendView
from viiwork_core.testing.fake_clock import FakeClock

DRAINING, PARKED, STOPPED, STARTING = (
    BackendState.DRAINING,
    BackendState.PARKED,
    BackendState.STOPPED,
    BackendState.STARTING,
)
VIEW = BackendView("m/0", "m", "fake", BackendState.HEALTHY, 1, 2, address=Address("127.0.0.1", 1))


@pytest.fixture
def book() -> SlotBook:
    made = SlotBook(FakeClock())
    made.see(VIEW)
    return made


def see(book: SlotBook, state: BackendState, **fields: Any) -> None:
    book.see(replace(VIEW, state=state, **fields))


def test_a_draining_backend_takes_nothing_and_is_idle_when_its_last_request_is_done(book: SlotBook) -> None:
    first, second = book.reserve("m/0"), book.reserve("m/0")
    assert first is not None
    assert second is not None
    book.enter(second, SlotState.SAVING)
    see(book, DRAINING, goal=STARTING)
    assert book.reserve("m/0") is None
    book.release(first, aborted=True)
    assert not book.idle("m/0")
    book.release(second)
    assert book.idle("m/0"), "what was aborted is the engine's affair, and nobody waits for it"


@pytest.mark.parametrize(
    ("state", "goal"),
    [(DRAINING, PARKED), (DRAINING, STOPPED), (STOPPED, PARKED), (STOPPED, STOPPED), (PARKED, PARKED)],
)
def test_a_model_that_is_leaving_has_no_room_to_wait_for(
    book: SlotBook, state: BackendState, goal: BackendState
) -> None:
    see(book, state, goal=goal)
    assert book.room("m") is None


@pytest.mark.parametrize("state", [DRAINING, STOPPED])
def test_a_model_that_comes_back_with_another_plan_can_be_waited_for(book: SlotBook, state: BackendState) -> None:
    see(book, state, goal=STARTING)
    room = book.room("m")
    assert room is not None
    assert (room.slots, room.free, room.backends, room.healthy_backends) == (0, 0, 1, 0)


def test_the_backends_that_stay_are_the_model_s_room(book: SlotBook) -> None:
    book.see(replace(VIEW, id="m/1"))
    see(book, DRAINING, goal=STOPPED)
    room = book.room("m")
    assert room is not None
    assert (room.slots, room.backends) == (2, 1)


def test_what_was_reserved_before_a_backend_was_forgotten_is_void(book: SlotBook) -> None:
    old = book.reserve("m/0")
    assert old is not None
    book.forget("m/0")
    book.forget("m/0")
    assert (book.find("m/0"), book.room("m"), book.idle("m/0"), book.views()) == (None, None, True, ())
    see(book, BackendState.HEALTHY, incarnation=2)
    new = book.reserve("m/0")
    assert new is not None
    book.release(old)
    assert not book.idle("m/0")
    assert book.find("m/0") == replace(VIEW, incarnation=2)
