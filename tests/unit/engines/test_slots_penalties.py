"""Backends that have refused or failed are passed over, as long as their model has others here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from viiwork_core import Address, Load, SlotLoad
from viiwork_core.engines.penalty import FIRST
from viiwork_core.engines.slots import FRESH, Reservation, SlotBook, SlotState
from viiwork_core.engines.states import BackendState, BackendView
from viiwork_core.testing.fake_clock import FakeClock

BUSY, IDLE = SlotLoad(0, busy=True), SlotLoad(0, busy=False)


class Scene:
    """A book with two backends of two slots each."""

    def __init__(self, backends: int = 2) -> None:
        self.clock = FakeClock()
        self.book = SlotBook(self.clock)
        for index in range(backends):
            self.see(index)

    def see(self, index: int, **fields: object) -> None:
        address = Address("127.0.0.1", 1)
        view = BackendView(f"m/{index}", "m", "fake", BackendState.HEALTHY, 1, 2, address=address)
        self.book.see(replace(view, **fields))  # type: ignore[arg-type]  # a view's fields

    def take(self, index: int) -> Reservation:
        self.clock.advance(0.01)
        taken = self.book.reserve(f"m/{index}")
        assert taken is not None
        return taken

    def fails(self, index: int, silence: float = 0.0) -> None:
        """It fails a request at once, or after a silence; its slot is free again."""
        taken, begun = self.take(index), self.clock.monotonic()
        self.clock.advance(silence)
        self.book.failed(taken, begun=begun, silence=silence)
        self.book.release(taken)

    @property
    def open(self) -> list[str]:
        return [view.id for view, _ in self.book.open_backends("m")]

    @property
    def free(self) -> int:
        room = self.book.room("m")
        assert room is not None
        assert room.busy + room.free == room.slots
        return room.free


def test_one_that_failed_is_passed_over_for_a_while() -> None:
    scene = Scene()
    scene.fails(0)
    assert (scene.open, scene.free) == (["m/1"], 2)
    assert scene.book.trusts("m")
    scene.clock.advance(FIRST)
    assert (scene.open, scene.free) == (["m/0", "m/1"], 4)


def test_the_other_one_is_waited_for_when_it_is_full() -> None:
    scene = Scene()
    scene.fails(0)
    running = [scene.take(1), scene.take(1)]
    assert (scene.open, scene.free) == ([], 0)
    scene.book.release(running[0])
    assert scene.open == ["m/1"]


def test_the_only_one_is_never_shut_out() -> None:
    scene = Scene(backends=1)
    scene.fails(0)
    assert (scene.open, scene.free) == (["m/0"], 2)
    assert not scene.book.trusts("m"), "though another host may be asked first"


def test_where_all_have_failed_none_is_shut_out() -> None:
    scene = Scene()
    scene.fails(0)
    scene.fails(1)
    assert scene.open == ["m/0", "m/1"]


@pytest.mark.parametrize("state", [BackendState.UNHEALTHY, BackendState.STARTING, BackendState.DEAD])
def test_another_one_that_is_not_well_is_no_other_one(state: BackendState) -> None:
    scene = Scene()
    scene.fails(0)
    scene.see(1, state=state)
    assert scene.open == ["m/0"]


def test_another_one_whose_slots_are_all_stuck_is_no_other_one() -> None:
    scene = Scene()
    scene.fails(0)
    for taken in (scene.take(1), scene.take(1)):
        scene.book.release(taken, aborted=True)
    assert scene.open == ["m/0"]


def test_one_request_at_a_time_tries_it_again_and_an_answer_ends_it() -> None:
    scene = Scene()
    scene.fails(0)
    scene.clock.advance(FIRST)
    trial = scene.take(0)
    assert scene.open == ["m/1"]
    scene.book.served(trial, answered_at=scene.clock.monotonic())
    assert scene.open == ["m/0", "m/1"]


def test_a_new_launch_is_not_blamed_for_the_one_before() -> None:
    scene = Scene()
    late = scene.take(0)
    scene.fails(0)
    scene.see(0, incarnation=2)
    assert scene.open == ["m/0", "m/1"]
    scene.book.failed(late, begun=scene.clock.monotonic(), silence=0.0)
    assert scene.open == ["m/0", "m/1"]


# What an engine says that it does


def idles(load: Load | None, *, pinned: bool, late: float = 0.0, early: bool = False) -> bool:
    """Whether the engine idles beside a request on slot 0, by a load that it was asked for since."""
    scene = Scene(backends=1)
    taken = scene.take(0)
    scene.book.enter(taken, SlotState.RUNNING)
    asked_at = scene.clock.monotonic() + (0.0 if early else 0.1)
    scene.clock.advance(0.2)
    scene.see(0, load=load, load_asked_at=asked_at)
    scene.clock.advance(late)
    return scene.book.idles(taken, pinned=pinned)


OTHER_BUSY = Load(2, 1, each=(IDLE, replace(BUSY, id=1)))


@pytest.mark.parametrize(
    ("load", "pinned", "idle"),
    [
        (Load(2, 0, each=(IDLE, replace(IDLE, id=1))), True, True),
        (Load(2, 1, each=(BUSY, replace(IDLE, id=1))), True, False),
        (OTHER_BUSY, True, True),
        (OTHER_BUSY, False, False),
        (Load(2, 0), False, True),
        (Load(2, 1), True, False),
        (Load(2, None), False, False),
        (None, True, False),
    ],
)
def test_an_engine_idles_only_by_its_own_word(load: Load | None, pinned: bool, idle: bool) -> None:
    assert idles(load, pinned=pinned) is idle


def test_a_word_from_before_or_long_ago_says_nothing() -> None:
    idle = Load(2, 0, each=(IDLE,))
    assert not idles(idle, pinned=True, early=True)
    assert not idles(idle, pinned=True, late=FRESH)
