"""The slot book: 0 <= busy <= slots always, each reservation released once, and no report undoes a newer fact."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, precondition, rule

from viiwork_core import Address, Load, SlotLoad
from viiwork_core.engines.slots import BLIND_AFTER, LINGERS, WEDGED_AFTER, Reservation, SlotBook, SlotState
from viiwork_core.engines.states import BackendState, BackendView
from viiwork_core.testing.fake_clock import FakeClock

FREE, RESERVED, RUNNING = SlotState.FREE, SlotState.RESERVED, SlotState.RUNNING
SAVING, ABORTING, WEDGED = SlotState.SAVING, SlotState.ABORTING, SlotState.WEDGED
ID = "m/0"


def view(slots: int = 2, **fields: Any) -> BackendView:
    base = BackendView(ID, "m", "fake", BackendState.HEALTHY, 1, slots, address=Address("127.0.0.1", 1), context=4096)
    return replace(base, **fields)


def each(*busy: bool) -> Load:
    return Load(len(busy), sum(busy), each=tuple(SlotLoad(number, one) for number, one in enumerate(busy)))


def count(busy: int, slots: int = 2) -> Load:
    return Load(slots, busy)


class Scene:
    """A book with one backend, and a clock of its own."""

    def __init__(self, slots: int = 2) -> None:
        self.clock = FakeClock()
        self.book = SlotBook(self.clock)
        self.slots = slots
        self.see()

    def see(self, load: Load | None = None, asked_at: float | None = None, **fields: Any) -> None:
        self.book.see(view(fields.pop("slots", self.slots), load=load, load_asked_at=asked_at, **fields))

    def hear(self, load: Load) -> None:
        """A report that is asked for and heard a moment from now."""
        self.clock.advance(0.01)
        self.see(load, self.clock.monotonic())

    def reserve(self, weight: int = 1, prefer: int | None = None) -> Reservation:
        self.clock.advance(0.01)
        taken = self.book.reserve(ID, weight=weight, prefer=prefer)
        assert taken is not None
        return taken

    def abort(self) -> Reservation:
        taken = self.reserve()
        self.book.enter(taken, RUNNING)
        self.clock.advance(0.01)
        self.book.release(taken, aborted=True)
        return taken

    @property
    def states(self) -> tuple[SlotState, ...]:
        return self.book.states(ID)

    @property
    def free(self) -> int:
        room = self.book.room("m")
        assert room is not None
        assert room.busy + room.free == room.slots
        return room.free


# Reserving and releasing


def test_a_reservation_takes_the_preferred_slot_else_the_longest_unused() -> None:
    scene = Scene(3)
    first = scene.reserve(prefer=2)
    assert first.slots == (2,)
    second = scene.reserve(prefer=2)
    assert second.slots == (0,)
    scene.book.release(second)
    third = scene.reserve()
    assert third.slots == (1,), "slot 0 was used a moment ago, slot 1 never"


def test_a_heavy_request_takes_all_its_slots_or_none() -> None:
    scene = Scene(3)
    assert scene.reserve().slot == 0
    assert scene.book.reserve(ID, weight=3) is None
    assert scene.free == 2
    heavy = scene.reserve(weight=2)
    assert heavy.slots == (1, 2)
    assert heavy.slot is None, "the engine spreads it, so it is pinned nowhere"
    scene.book.release(heavy)
    assert scene.free == 2


def test_a_second_release_does_nothing() -> None:
    scene = Scene(1)
    first = scene.reserve()
    scene.book.release(first)
    second = scene.reserve()
    scene.book.release(first)
    scene.book.release(first, aborted=True)
    scene.book.enter(first, SAVING)
    assert scene.states == (RESERVED,)
    scene.book.release(second)
    assert scene.states == (FREE,)


def test_what_a_reservation_does_is_the_state_of_its_slots() -> None:
    scene = Scene(2)
    taken = scene.reserve()
    for state in (SlotState.RESTORING, RUNNING, SAVING):
        scene.book.enter(taken, state)
        assert scene.states == (state, FREE)


def test_nothing_is_reserved_on_a_backend_that_is_not_healthy_or_has_no_address() -> None:
    scene = Scene()
    scene.see(state=BackendState.UNHEALTHY)
    assert scene.book.reserve(ID) is None
    assert scene.free == 0
    scene.see(address=None)
    assert scene.book.reserve(ID) is None
    assert scene.book.reserve("m/7") is None


# Reports, slot by slot


def test_a_slot_that_others_use_is_closed_until_the_engine_says_otherwise() -> None:
    scene = Scene()
    scene.hear(each(True, False))
    assert scene.free == 1
    assert scene.reserve(prefer=0).slots == (1,)
    assert scene.book.reserve(ID) is None
    scene.hear(each(False, True))
    assert scene.reserve().slots == (0,)


def test_a_stale_report_neither_closes_a_released_slot_nor_frees_a_taken_one() -> None:
    scene = Scene(1)
    taken = scene.reserve()
    scene.book.enter(taken, RUNNING)
    asked_at = scene.clock.monotonic() + 0.001
    scene.clock.advance(0.01)
    scene.book.release(taken)
    scene.see(each(True), asked_at)
    assert scene.free == 1, "the report was asked for while the request ran"
    idle_since = scene.clock.monotonic()
    again = scene.reserve()
    scene.see(each(False), idle_since)
    scene.see(each(False), scene.clock.monotonic() + 1)
    assert scene.states == (RESERVED,), "the book is the authority, whatever is reported"
    scene.book.release(again)


def test_a_report_of_the_very_moment_of_a_change_says_nothing_of_it() -> None:
    scene = Scene(1)
    scene.abort()
    scene.see(each(False), scene.clock.monotonic())
    assert scene.states == (ABORTING,)


def test_an_aborted_slot_opens_only_on_a_fresh_report_that_it_is_idle() -> None:
    scene = Scene(2)
    before = scene.clock.monotonic()
    scene.abort()
    scene.see(each(False, False), before)
    assert scene.states == (ABORTING, FREE)
    scene.hear(each(True, False))
    assert scene.states == (ABORTING, FREE)
    assert scene.free == 1
    scene.hear(each(False, True))
    assert scene.states == (FREE, FREE)
    assert scene.free == 1, "and the other one is somebody else's now"


def test_a_report_that_leaves_a_slot_out_says_nothing_of_it() -> None:
    scene = Scene(2)
    scene.abort()
    scene.hear(Load(2, 0, each=(SlotLoad(1, busy=False),)))
    assert scene.states == (ABORTING, FREE)


def test_an_aborted_slot_that_stays_busy_is_wedged_after_thirty_seconds() -> None:
    scene = Scene(1)
    scene.abort()
    scene.clock.advance(WEDGED_AFTER - 0.1)
    scene.hear(each(True))
    assert scene.states == (ABORTING,)
    scene.clock.advance(0.2)
    scene.hear(each(True))
    assert scene.states == (WEDGED,)
    assert scene.free == 0
    scene.hear(each(False))
    assert scene.states == (FREE,)


def test_an_old_report_does_not_make_a_slot_wedged_by_being_seen_again() -> None:
    scene = Scene(1)
    scene.abort()
    scene.hear(each(True))
    heard_at = scene.clock.monotonic()
    scene.clock.advance(WEDGED_AFTER + 1)
    scene.see(each(True), heard_at, context=2048)
    assert scene.states == (ABORTING,)


def test_an_aborted_slot_of_an_engine_that_never_tells_its_load_opens_after_a_while() -> None:
    scene = Scene(1)
    scene.abort()
    scene.clock.advance(BLIND_AFTER - 0.1)
    assert scene.free == 0
    scene.clock.advance(0.2)
    assert scene.free == 1
    scene.abort()
    scene.hear(each(True))
    scene.clock.advance(BLIND_AFTER + 1)
    assert scene.free == 0, "this one does tell"


# Reports of a bare number


def test_a_bare_number_closes_as_many_slots_as_others_use() -> None:
    scene = Scene(3)
    taken = scene.reserve()
    scene.book.enter(taken, RUNNING)
    scene.hear(count(2, 3))
    assert scene.free == 1
    scene.hear(count(1, 3))
    assert scene.free == 2


def test_a_bare_number_that_was_asked_for_before_a_change_says_nothing() -> None:
    scene = Scene(2)
    scene.abort()
    scene.clock.advance(0.01)
    asked_at = scene.clock.monotonic()
    newer = scene.reserve()
    scene.book.enter(newer, RUNNING)
    scene.see(count(1), asked_at)
    assert scene.states == (ABORTING, RUNNING), "the one that was busy then is the aborted one"


def test_a_bare_number_counts_a_slot_that_only_waits_as_none_of_the_busy_ones() -> None:
    scene = Scene(2)
    scene.abort()
    scene.reserve()
    scene.hear(count(1))
    assert scene.states == (ABORTING, RESERVED)


def test_a_bare_number_opens_the_oldest_of_several_aborted_slots() -> None:
    scene = Scene(2)
    assert scene.abort().slots == (0,)
    assert scene.abort().slots == (1,)
    scene.hear(count(1))
    assert scene.states == (FREE, ABORTING)
    scene.hear(count(0))
    assert scene.states == (FREE, FREE)


def test_an_engine_that_begins_to_name_its_slots_is_believed_slot_by_slot() -> None:
    scene = Scene(2)
    scene.hear(count(2))
    assert scene.free == 0
    scene.hear(each(False, True))
    assert scene.free == 1
    scene.hear(count(0))
    assert scene.free == 2


# New processes and other sizes


def test_a_new_incarnation_voids_every_reservation() -> None:
    scene = Scene(2)
    old = scene.reserve()
    scene.see(incarnation=2)
    assert scene.states == (FREE, FREE)
    new = scene.reserve(prefer=old.slot)
    scene.book.enter(old, SAVING)
    scene.book.release(old, aborted=True)
    assert scene.states == (RESERVED, FREE)
    scene.book.release(new)


def test_a_view_of_an_older_incarnation_changes_nothing() -> None:
    scene = Scene(2)
    scene.see(incarnation=2)
    taken = scene.reserve()
    scene.see(incarnation=1, slots=1)
    assert scene.states == (RESERVED, FREE)
    assert scene.book.view(ID).incarnation == taken.incarnation == 2


@pytest.mark.parametrize("held", [0, 1, 2, 3])
def test_fewer_slots_than_before_are_never_given_out_again(held: int) -> None:
    scene = Scene(4)
    taken = scene.reserve(prefer=held)
    scene.see(slots=2)
    given = [one for _ in range(4) if (one := scene.book.reserve(ID)) is not None]
    assert {slot for one in given for slot in one.slots} == {0, 1} - {held}
    scene.book.release(taken)
    for one in given:
        scene.book.release(one)
    assert scene.states == (FREE, FREE)
    assert scene.free == 2


def test_a_slot_that_the_engine_lost_while_it_was_aborted_is_gone() -> None:
    scene = Scene(2)
    scene.book.release(scene.reserve())
    assert scene.abort().slots == (1,)
    scene.see(slots=1)
    assert scene.states == (FREE,)


def test_slots_that_come_back_are_numbered_without_a_gap() -> None:
    scene = Scene(3)
    last = scene.reserve(prefer=2)
    scene.see(slots=1)
    scene.see(slots=4)
    assert scene.states == (FREE, FREE, RESERVED, FREE)
    scene.book.release(last)
    assert scene.free == 4


def test_room_sums_over_the_healthy_backends_of_a_model() -> None:
    book = SlotBook(FakeClock())
    book.see(view(2))
    book.see(view(3, id="m/1", context=2048))
    book.see(view(4, id="m/2", state=BackendState.STARTING, context=1024))
    book.see(view(5, id="n/0", model="n"))
    assert book.reserve("m/1", weight=2) is not None
    room = book.room("m")
    assert room is not None
    assert (room.slots, room.busy, room.free, room.context) == (5, 2, 3, 2048)
    assert (room.backends, room.healthy_backends) == (3, 2)
    assert book.room("x") is None
    assert [(one.id, free) for one, free in book.open_backends("m")] == [("m/0", 2), ("m/1", 1)]


# Any order of events


@dataclass
class _Report:
    asked_at: float
    busy: tuple[bool, ...]
    incarnation: int


class Book(RuleBasedStateMachine):
    """The book beside an engine that is what it is: a slot is busy from the sending of a request to its end, which for
    an aborted one comes late."""

    taken = Bundle("taken")
    reports = Bundle("reports")
    names_slots = True

    def __init__(self) -> None:
        super().__init__()
        self.clock = FakeClock()
        self.book = SlotBook(self.clock)
        self.incarnation = 1
        self.engine: list[bool] = [False, False]
        self.live: list[Reservation] = []
        self.heard_at = float("-inf")
        self.aborted_at: dict[int, float] = {}
        self._see()

    def _see(self, load: Load | None = None, asked_at: float | None = None, incarnation: int | None = None) -> None:
        slots = len(self.engine)
        incarnation = self.incarnation if incarnation is None else incarnation
        self.book.see(view(slots, incarnation=incarnation, load=load, load_asked_at=asked_at))

    def _tick(self) -> None:
        self.clock.advance(0.001)

    @rule(target=taken, weight=st.integers(1, 3), prefer=st.one_of(st.none(), st.integers(0, 5)))
    def reserve(self, weight: int, prefer: int | None) -> Reservation | None:
        self._tick()
        taken = self.book.reserve(ID, weight=weight, prefer=prefer)
        if taken is None:
            return None
        assert len(set(taken.slots)) == weight
        assert max(taken.slots) < len(self.engine)
        assert not {slot for other in self.live for slot in other.slots} & set(taken.slots)
        blind = self.clock.monotonic() - BLIND_AFTER
        if self.names_slots:
            at_work = {slot for slot in taken.slots if self.engine[slot] and self._abort_of(slot) >= blind}
            assert not at_work, "the engine still works there on what was aborted"
        self.live.append(taken)
        return taken

    def _abort_of(self, slot: int) -> float:
        """When the slot was aborted; long ago if it was not, or if the engine has not been heard since."""
        aborted_at = self.aborted_at.get(slot, float("-inf"))
        return aborted_at if self.heard_at > aborted_at else float("-inf")

    @rule(one=taken)
    def run(self, one: Reservation | None) -> None:
        self._tick()
        if one is None:
            return
        self.book.enter(one, RUNNING)
        if one in self.live:
            for slot in one.slots:
                if slot < len(self.engine):
                    self.engine[slot] = True
                    self.aborted_at.pop(slot, None)

    @rule(one=taken)
    def save(self, one: Reservation | None) -> None:
        self._tick()
        if one is None:
            return
        self.book.enter(one, SAVING)
        self._idle(one)

    def _idle(self, one: Reservation) -> None:
        if one in self.live:
            for slot in one.slots:
                if slot < len(self.engine):
                    self.engine[slot] = False

    @rule(one=taken)
    def release(self, one: Reservation | None) -> None:
        self._tick()
        if one is None:
            return
        self._idle(one)
        self.book.release(one)
        self._gone(one)

    @rule(one=taken)
    def abort(self, one: Reservation | None) -> None:
        self._tick()
        if one is None:
            return
        if one in self.live:
            self.aborted_at |= dict.fromkeys(one.slots, self.clock.monotonic())
        self.book.release(one, aborted=True)
        self._gone(one)

    def _gone(self, one: Reservation) -> None:
        if one in self.live:
            self.live.remove(one)

    @rule(slot=st.integers(0, 5))
    def engine_ends(self, slot: int) -> None:
        """What was aborted ends at last."""
        self._tick()
        held = {number for one in self.live for number in one.slots}
        if slot < len(self.engine) and slot not in held:
            self.engine[slot] = False

    @rule(target=reports)
    def ask(self) -> _Report:
        self._tick()
        return _Report(self.clock.monotonic(), tuple(self.engine), self.incarnation)

    @rule(report=reports)
    def hear(self, report: _Report) -> None:
        """Fresh or stale, and as often as it likes."""
        self._tick()
        if report.incarnation != self.incarnation or len(report.busy) != len(self.engine):
            return
        load = each(*report.busy) if self.names_slots else count(sum(report.busy), len(report.busy))
        if report.asked_at > self.heard_at:
            self.heard_at = report.asked_at
        self._see(load, report.asked_at)

    @rule(seconds=st.sampled_from([0.5, 5.0, 31.0]))
    def wait(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule(slots=st.integers(1, 4))
    @precondition(lambda self: not any(self.engine))
    def resize(self, slots: int) -> None:
        self._tick()
        self.engine = [False] * slots
        for one in self.live:
            for slot in one.slots:
                if slot < slots:
                    self.engine[slot] = True
        self._see()

    @rule()
    def restart(self) -> None:
        self._tick()
        self.incarnation += 1
        self.engine = [False] * len(self.engine)
        self.live.clear()
        self.aborted_at.clear()
        self._see()

    @rule()
    def hear_of_an_old_process(self) -> None:
        self._see(incarnation=self.incarnation - 1)

    @invariant()
    def the_sums_are_right(self) -> None:
        room = self.book.room("m")
        assert room is not None
        assert 0 <= room.busy <= room.slots
        assert room.free == room.slots - room.busy
        states = self.book.states(ID)
        held = sum(len(one.slots) for one in self.live)
        assert sum(state not in (FREE, ABORTING, WEDGED) for state in states) == held
        assert room.busy >= held


class BareBook(Book):
    """The same with an engine that tells only how many slots are busy."""

    names_slots = False


_SETTINGS = settings(
    max_examples=80, stateful_step_count=40, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
TestAnyOrder = Book.TestCase
TestAnyOrder.settings = _SETTINGS
TestAnyOrderOfBareNumbers = BareBook.TestCase
TestAnyOrderOfBareNumbers.settings = _SETTINGS


# A backend that has just failed a request


def test_a_doubted_backend_takes_nothing_until_its_engine_is_heard() -> None:
    scene = Scene()
    scene.hear(each(False, False))
    scene.clock.advance(0.01)
    scene.book.doubt(ID)
    assert scene.free == 0
    assert scene.book.reserve(ID) is None
    scene.see(each(False, False), scene.clock.monotonic() - 0.005)
    assert scene.free == 0, "what was asked for before the failure says nothing"
    scene.hear(each(False, False))
    assert scene.free == 2


def test_a_doubt_ends_with_the_process_and_with_time() -> None:
    scene = Scene()
    scene.book.doubt(ID)
    scene.see(incarnation=2)
    assert scene.free == 2
    scene.book.doubt(ID)
    scene.clock.advance(BLIND_AFTER + 0.1)
    assert scene.free == 2, "an engine that never tells its load is not shut out for good"


def test_a_slot_that_lingers_in_the_engine_is_not_somebody_elses() -> None:
    scene = Scene(2)
    taken = scene.reserve()
    scene.book.enter(taken, RUNNING)
    scene.clock.advance(1.0)
    scene.book.release(taken)
    scene.clock.advance(0.01)
    scene.hear(each(True, False))
    assert scene.free == 2, "the end of an answer comes a moment before the engine gives the slot up"
    scene.clock.advance(LINGERS)
    scene.hear(each(True, False))
    assert scene.free == 1, "now it is another's request"
