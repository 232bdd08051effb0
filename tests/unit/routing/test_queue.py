"""The queue: first in, first out, and nobody overtakes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from router_scene import Places, here, there

from viiwork_core.errors import NotFound, QueueFull
from viiwork_core.routing.ticket import Here, Placement, Ticket


def test_first_in_first_out() -> None:
    places = Places()
    places.backend()
    running = here(places.offer(places.ticket()))
    waiting = [places.ticket() for _ in range(4)]
    assert [places.offer(ticket) for ticket in waiting] == [None] * 4
    served = []
    for _ in waiting:
        places.book.release(running.reservation)
        ((ticket, placement),) = places.settle()
        running = here(placement)
        served.append(ticket)
    assert served == waiting


def test_a_newcomer_does_not_overtake_a_waiter_that_wants_more() -> None:
    places = Places()
    places.backend(2)
    running = here(places.offer(places.ticket()))
    heavy, light = places.ticket(weight=2), places.ticket()
    assert places.offer(heavy) is None
    assert places.offer(light) is None, "one slot is free, and the heavy one waits for two"
    assert places.settle() == []
    places.book.release(running.reservation)
    assert [ticket for ticket, _ in places.settle()] == [heavy]


def test_who_leaves_the_queue_lets_those_behind_go() -> None:
    places = Places()
    places.backend(2)
    places.offer(places.ticket())
    heavy, light = places.ticket(weight=2), places.ticket()
    places.offer(heavy)
    places.offer(light)
    places.router.withdraw(heavy)
    places.router.withdraw(heavy)
    assert [ticket for ticket, _ in places.settle()] == [light]


def test_a_waiter_for_one_host_holds_up_nobody_else() -> None:
    places = Places()
    places.backend()
    places.peer("peer", busy=1)
    pinned = places.ticket(pin="peer")
    assert places.offer(pinned) is None
    assert here(places.offer(places.ticket()))
    places.offer(waiting := places.ticket())
    places.peer("peer", slots=2)
    assert [ticket for ticket, _ in places.settle()] == [pinned, waiting]


def test_waiters_for_the_same_host_keep_their_order_too() -> None:
    places = Places()
    places.peer("peer", slots=2, busy=1)
    heavy, light = places.ticket(pin="peer", weight=2), places.ticket(pin="peer")
    assert places.offer(heavy) is None
    assert places.offer(light) is None
    assert places.settle() == []
    places.peer("peer", slots=2)
    assert [ticket for ticket, _ in places.settle()] == [heavy]


def test_models_do_not_hold_each_other_up() -> None:
    places = Places()
    places.backend(model="m", healthy=False)
    places.backend(model="n")
    assert places.offer(places.ticket(model="m")) is None
    assert here(places.offer(places.ticket(model="n")))
    assert (places.router.queued("m"), places.router.queued("n"), places.router.queued("x")) == (1, 0, 0)


def test_one_that_was_refused_keeps_its_turn() -> None:
    places = Places()
    places.peer("peer", slots=2)
    early = places.ticket()
    first = there(places.offer(early))
    second = there(places.offer(places.ticket()))
    late = places.ticket()
    assert places.offer(late) is None
    places.router.refused(first, places.now)
    places.router.returned(first)
    assert places.offer(early, again=True) is None
    places.router.returned(second)
    places.peer("peer")
    assert [ticket for ticket, _ in places.settle()] == [early]


def test_several_that_were_refused_keep_their_order_among_each_other() -> None:
    places = Places()
    places.backend(healthy=False)
    tickets = [places.ticket() for _ in range(4)]
    places.offer(tickets[2])
    for again in (tickets[1], tickets[3], tickets[0]):
        places.offer(again, again=True)
    places.backend(slots=4)
    assert [ticket for ticket, _ in places.settle()] == tickets


def test_one_that_was_refused_may_be_placed_at_once() -> None:
    places = Places()
    places.backend()
    places.peer("peer", busy=1)
    places.offer(places.ticket(pin="peer"))
    assert here(places.offer(places.ticket(), again=True))


def test_a_full_queue_takes_back_one_that_keeps_its_turn() -> None:
    places = Places(queue_max=1)
    places.backend(healthy=False)
    assert places.offer(places.ticket()) is None
    assert places.offer(places.ticket(), again=True) is None


def test_where_nobody_may_wait_nobody_does() -> None:
    places = Places(queue_max=0)
    places.backend(healthy=False)
    for again in (False, True):
        with pytest.raises(QueueFull):
            places.offer(places.ticket(), again=again)
    assert places.router.next_deadline() is None


# Any order of events


@dataclass(eq=False)
class _Asked:
    ticket: Ticket
    number: int


class Waiting(RuleBasedStateMachine):
    """This node with two slots, and a peer with two that reports when it likes."""

    bound = 4

    def __init__(self) -> None:
        super().__init__()
        self.places = Places(queue_max=self.bound)
        self.places.backend(2)
        self.waiting: list[Ticket] = []
        self.running: list[tuple[Ticket, Placement]] = []
        self.peer_here = False

    def _tell(self) -> None:
        forwards = [one for _, one in self.running if not isinstance(one, Here)]
        self.places.peer("peer", slots=2, busy=min(2, sum(one.weight for one in forwards)))
        self.peer_here = True

    def _placed(self, ticket: Ticket, placement: Placement) -> None:
        before = [other for other in self.waiting if other.pin == ticket.pin and other.deadline < ticket.deadline]
        assert before == [], "it overtook"
        assert ticket.pin in (None, "here" if isinstance(placement, Here) else placement.member.node)
        if ticket in self.waiting:
            self.waiting.remove(ticket)
        self.running.append((ticket, placement))

    @rule(weight=st.integers(1, 2), pin=st.sampled_from([None, None, "here", "peer"]))
    def ask(self, weight: int, pin: str | None) -> None:
        ticket = self.places.ticket(weight=weight, pin=pin)
        try:
            placement = self.places.offer(ticket)
        except NotFound:
            assert pin == "peer"
            assert not self.peer_here
        except QueueFull:
            assert len(self.waiting) >= self.bound
        else:
            if placement is None:
                assert len(self.waiting) < self.bound
                self.waiting.append(ticket)
            else:
                self._placed(ticket, placement)

    @rule(index=st.integers(0, 3))
    def end(self, index: int) -> None:
        if index < len(self.running):
            _, placement = self.running.pop(index)
            if isinstance(placement, Here):
                self.places.book.release(placement.reservation)
                self.places.book.release(placement.reservation)
            else:
                self.places.router.returned(placement)

    @rule(index=st.integers(0, 3))
    def refuse(self, index: int) -> None:
        if index < len(self.running) and not isinstance(placement := self.running[index][1], Here):
            ticket, _ = self.running.pop(index)
            self.places.router.refused(placement, self.places.now)
            self.places.router.returned(placement)
            try:
                again = self.places.offer(ticket, again=True)
            except NotFound:
                assert ticket.pin == "peer"
                assert not self.peer_here
                return
            if again is None:
                self.waiting.append(ticket)
            else:
                self.running.append((ticket, again))

    @rule(index=st.integers(0, 3))
    def leave(self, index: int) -> None:
        if index < len(self.waiting):
            self.places.router.withdraw(self.waiting.pop(index))

    @rule()
    def report(self) -> None:
        self.places.clock.advance(0.001)
        self._tell()

    @rule()
    def settle(self) -> None:
        for ticket, placement in self.places.settle():
            self._placed(ticket, placement)
        for ticket, _ in self.places.router.lost():
            assert ticket.pin == "peer"
            assert not self.peer_here
            self.waiting.remove(ticket)

    @rule()
    def the_peer_leaves(self) -> None:
        self.places.router.forget("peer")
        self.peer_here = False

    @rule(seconds=st.sampled_from([0.5, 4.0, 21.0]))
    def wait(self, seconds: float) -> None:
        self.places.clock.advance(seconds)
        now = self.places.now
        for ticket in self.places.router.expire(now):
            assert ticket.deadline <= now
            self.waiting.remove(ticket)
        assert all(ticket.deadline > now for ticket in self.waiting)

    @invariant()
    def nothing_is_lost(self) -> None:
        assert self.places.router.queued("m") == len(self.waiting)
        earliest = min((ticket.deadline for ticket in self.waiting), default=None)
        assert self.places.router.next_deadline() == earliest
        slots = Counter(slot for _, one in self.running if isinstance(one, Here) for slot in one.reservation.slots)
        assert set(slots.values()) <= {1}
        room = self.places.local.room("m")
        assert room is not None
        assert room.busy == len(slots)


TestAnyOrder = Waiting.TestCase
TestAnyOrder.settings = settings(
    max_examples=80, stateful_step_count=40, deadline=None, database=None, suppress_health_check=list(HealthCheck)
)
