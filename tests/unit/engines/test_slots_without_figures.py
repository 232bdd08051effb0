"""The slot book with an engine that has no figure of what is busy: it neither takes slots nor frees running ones."""

from __future__ import annotations

from dataclasses import replace

from viiwork_core import Address, Load
from viiwork_core.engines.slots import Reservation, SlotBook, SlotState
from viiwork_core.engines.states import BackendState, BackendView
from viiwork_core.testing.fake_clock import FakeClock

SILENT = Load(slots=2, busy=None)


class Scene:
    """A book with one backend of two slots."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.book = SlotBook(self.clock)
        self.hear(SILENT)

    def hear(self, load: Load | None) -> None:
        self.clock.advance(0.01)
        asked_at = None if load is None else self.clock.monotonic()
        view = BackendView("m/0", "m", "external", BackendState.HEALTHY, 1, 2, address=Address("127.0.0.1", 1))
        self.book.see(replace(view, load=load, load_asked_at=asked_at))

    def run(self) -> Reservation:
        self.clock.advance(0.01)
        taken = self.book.reserve("m/0")
        assert taken is not None
        self.book.enter(taken, SlotState.RUNNING)
        return taken

    @property
    def free(self) -> int:
        room = self.book.room("m")
        assert room is not None
        return room.free


def test_only_the_books_own_requests_take_slots() -> None:
    scene = Scene()
    assert scene.free == 2
    first, second = scene.run(), scene.run()
    scene.hear(SILENT)
    assert scene.free == 0
    assert scene.book.states("m/0") == (SlotState.RUNNING, SlotState.RUNNING)
    scene.book.release(first)
    scene.book.release(second)
    assert scene.free == 2


def test_an_aborted_slot_opens_with_the_next_word_and_not_after_a_wait() -> None:
    scene = Scene()
    scene.run()
    scene.clock.advance(0.01)
    scene.book.release(scene.run(), aborted=True)
    assert scene.free == 0
    scene.hear(SILENT)
    assert scene.free == 1
    assert sorted(scene.book.states("m/0")) == [SlotState.FREE, SlotState.RUNNING]


def test_what_was_aborted_before_anything_was_heard_opens_too() -> None:
    scene = Scene()
    scene.hear(None)
    scene.book.release(scene.run(), aborted=True)
    scene.hear(SILENT)
    assert scene.free == 2


def test_no_figure_after_a_figure_takes_back_what_that_said_of_others() -> None:
    scene = Scene()
    scene.hear(Load(slots=2, busy=1))
    assert scene.free == 1
    scene.hear(SILENT)
    assert scene.free == 2
