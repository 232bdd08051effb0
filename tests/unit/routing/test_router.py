"""The router: which host, by what is known at this moment."""

from __future__ import annotations

import pytest
from router_scene import STALE_AFTER, Places, here, there

from viiwork_core.contracts.policy import Query
from viiwork_core.engines.states import BackendView
from viiwork_core.errors import NotFound, QueueFull
from viiwork_core.routing.backends import Held


def test_the_policy_s_first_host_gets_it_and_this_one_reserves_at_once() -> None:
    places = Places()
    places.backend()
    places.peer("abc")
    assert there(places.offer(places.ticket())).member.node == "abc"
    reservation = here(places.offer(places.ticket())).reservation
    assert reservation.backend == "m/0"
    assert places.book.reserve("m/0") is None
    assert places.offer(places.ticket()) is None, "now it waits"
    assert places.router.queued("m") == 1


def test_only_hosts_with_room_are_candidates() -> None:
    places = Places()
    places.backend()
    places.peer("busy", slots=2, busy=2)
    places.peer("sick", slots=2, backends=0)
    places.peer("other", model="n")
    places.peer("room", slots=2, busy=1)
    places.offer(places.ticket())
    assert places.policy.hosts() == ["here", "room"]
    assert places.policy.candidate("room").free == 1


def test_a_policy_is_not_asked_about_nothing() -> None:
    places = Places()
    places.backend(healthy=False)
    assert places.offer(places.ticket()) is None
    assert places.policy.asked == []


def test_a_stale_report_makes_a_host_unusable_but_not_unknown() -> None:
    places = Places()
    places.peer("peer", slots=4)
    places.clock.advance(STALE_AFTER - 0.01)
    assert places.offer(places.ticket()) is not None
    places.clock.advance(0.02)
    assert places.offer(places.ticket()) is None
    places.peer("peer", slots=4)
    assert len(places.settle()) == 1


def test_a_report_asked_for_earlier_than_the_known_one_changes_nothing() -> None:
    places = Places()
    before = places.now
    places.clock.advance(1)
    places.peer("peer", slots=1)
    places.peer("peer", slots=1, busy=1, asked_at=before)
    places.peer("peer", slots=1, busy=1, asked_at=before, node_id="2")
    assert places.offer(places.ticket()) is not None


def test_own_forwards_count_until_a_report_can_know_of_them() -> None:
    places = Places()
    places.peer("peer", slots=2)
    first = there(places.offer(places.ticket()))
    assert places.offer(places.ticket()) is not None
    waiting = places.ticket()
    assert places.offer(waiting) is None, "two are on their way to its two slots"
    places.router.returned(first)
    assert [ticket for ticket, _ in places.settle()] == [waiting]
    # A report that was asked for after the forwards counts them itself.
    places.clock.advance(0.01)
    places.peer("peer", slots=3, busy=2)
    assert places.offer(places.ticket()) is not None
    assert places.offer(places.ticket()) is None


def test_a_heavy_forward_counts_with_its_weight() -> None:
    places = Places()
    places.peer("peer", slots=4)
    assert places.offer(places.ticket(weight=3)) is not None
    places.offer(places.ticket())
    assert places.policy.candidate("peer").free == 1


def test_a_heavy_request_goes_only_where_one_backend_may_have_the_room() -> None:
    places = Places()
    places.peer("peer", slots=4, busy=3, backends=2)
    assert places.offer(places.ticket(weight=2)) is None
    assert places.offer(places.ticket(pin="peer")) is not None
    places.peer("wide", slots=4, busy=2, backends=2)
    assert len(places.settle()) == 1, "more than a backend has is a whole backend"


def test_forwards_of_an_earlier_process_are_nothing_to_the_next() -> None:
    places = Places()
    places.peer("peer")
    old = there(places.offer(places.ticket()))
    places.clock.advance(0.01)
    places.peer("peer", node_id="2")
    assert there(places.offer(places.ticket())).member.node_id == "2"
    places.router.returned(old)
    assert places.offer(places.ticket()) is None, "the newer one's is still on its way"


def test_a_refusal_stands_until_a_report_that_was_asked_for_later() -> None:
    places = Places()
    places.peer("peer", slots=2)
    asked_at = places.now
    placement = there(places.offer(places.ticket()))
    places.clock.advance(0.1)
    places.router.returned(placement)
    places.router.refused(placement, places.now)
    assert places.offer(places.ticket()) is None
    places.peer("peer", slots=2, asked_at=asked_at + 0.05)
    assert places.settle() == [], "that one was on its way when the peer refused"
    places.peer("peer", slots=2, asked_at=places.now)
    assert len(places.settle()) == 1


def test_a_refusal_concerns_one_model() -> None:
    places = Places()
    places.peer("peer")
    placement = there(places.offer(places.ticket()))
    places.router.refused(placement, places.now)
    places.router.returned(placement)
    places.peer("both", model="n")
    assert places.offer(places.ticket(model="n")) is not None


def test_what_was_tried_is_left_out_hosts_and_backends_alike() -> None:
    places = Places()
    places.backend(index=0)
    places.backend(index=1)
    places.peer("zzz", slots=2)
    ticket = places.ticket()
    first = here(places.offer(ticket))
    places.book.release(first.reservation)
    ticket.tried.add(first.name)
    second = places.router.pick(ticket, places.now)
    assert here(second).reservation.backend == "m/1"
    ticket.tried.add(here(second).name)
    third = there(places.router.pick(ticket, places.now))
    assert third.member.node == "zzz"
    ticket.tried.add(third.name)
    assert places.router.pick(ticket, places.now) is None


def test_a_pin_leaves_one_host() -> None:
    places = Places()
    places.backend(slots=2)
    places.peer("abc")
    assert here(places.offer(places.ticket(pin="here")))
    assert there(places.offer(places.ticket(pin="abc")))
    assert places.offer(places.ticket(pin="abc")) is None
    assert places.book.reserve("m/0") is not None


def test_an_unknown_model_or_host_is_refused_with_the_known_ones() -> None:
    places = Places()
    places.backend(model="mine")
    places.peer("peer", model="theirs")
    with pytest.raises(NotFound, match='model "x" is not served by any node') as unknown:
        places.offer(places.ticket(model="x"))
    assert unknown.value.remedy == "known models: mine, theirs"
    with pytest.raises(NotFound, match='model "theirs" is not served by host "here"') as elsewhere:
        places.offer(places.ticket(model="theirs", pin="here"))
    assert elsewhere.value.remedy == "hosts: peer"


def test_a_model_that_is_sick_everywhere_is_waited_for() -> None:
    places = Places()
    places.backend(healthy=False)
    places.peer("peer", backends=0)
    assert places.offer(places.ticket()) is None


def test_a_host_that_leaves_takes_only_its_own_waiters_along() -> None:
    places = Places()
    places.backend(healthy=False)
    places.peer("peer", busy=1)
    pinned, free = places.ticket(pin="peer"), places.ticket()
    places.offer(pinned)
    places.offer(free)
    places.router.forget("peer")
    ((ticket, error),) = places.router.lost()
    assert ticket is pinned
    assert 'not served by host "peer"' in error.message
    assert places.router.lost() == []
    assert places.router.queued("m") == 1


def test_the_last_host_that_leaves_ends_the_waiting() -> None:
    places = Places()
    places.peer("peer", busy=1)
    first, second = places.ticket(), places.ticket(pin="peer")
    places.offer(first)
    places.offer(second)
    places.router.forget("peer")
    assert [ticket for ticket, _ in places.router.lost()] == [first, second]
    assert places.router.next_deadline() is None


def test_time_is_up_for_those_whose_deadline_has_passed() -> None:
    places = Places()
    places.peer("peer", busy=1)
    early, late = places.ticket(wait=1), places.ticket(wait=5)
    places.offer(late)
    places.offer(early)
    assert places.router.next_deadline() == early.deadline
    assert places.router.expire(early.deadline - 0.001) == []
    assert places.router.expire(early.deadline) == [early]
    assert places.router.next_deadline() == late.deadline


def test_a_waiter_keeps_what_it_asked_for() -> None:
    places = Places()
    places.peer("peer", busy=1)
    ticket = places.ticket(session="5e5e")
    places.offer(ticket)
    places.peer("peer")
    places.settle()
    assert places.policy.asked[-1][0] == Query("m", "5e5e", 1)


def test_a_full_queue_refuses() -> None:
    places = Places(queue_max=1)
    places.backend(healthy=False)
    assert places.offer(places.ticket()) is None
    with pytest.raises(QueueFull, match="queue for m is full") as full:
        places.offer(places.ticket())
    assert full.value.retry_after == 2


def test_backends_here_are_ranked_with_what_they_hold() -> None:
    def held(view: BackendView, session: str) -> Held | None:
        return Held(100, 1) if (view.id, session) == ("m/1", "5e5e") else None

    places = Places(held=held)
    for index in range(2):
        places.backend(2, index)
    reservation = here(places.offer(places.ticket(session="5e5e"))).reservation
    assert reservation.backend == "m/0", "this policy ranks by name"
    assert places.policy.candidate("m/1").held_tokens == 100
    assert places.policy.candidate("m/0").held_tokens is None
    assert places.policy.candidate("here").held_tokens == 100
    ticket = places.ticket(session="5e5e", tried={"m/0"})
    assert here(places.offer(ticket)).reservation.slots == (1,), "and its slot is preferred"


def test_a_request_heavier_than_any_backend_takes_a_whole_one() -> None:
    places = Places()
    places.backend(2)
    reservation = here(places.offer(places.ticket(weight=5))).reservation
    assert len(reservation.slots) == 2


def test_the_spill_order_is_a_ranking_without_this_host_and_counts_full_ones() -> None:
    places = Places()
    places.backend()
    places.peer("full", slots=2, busy=2)
    places.peer("also")
    places.peer("sick", backends=0)
    order = places.router.spill_order(Query("m", None, 1), places.now)
    assert [view.member.node for view in order] == ["also", "full"]


def test_the_peers_whose_word_counts_are_told() -> None:
    places = Places()
    places.peer("one")
    places.clock.advance(60)
    places.peer("two")
    assert places.router.fresh(places.now) == {"two"}


def test_an_error_lists_some_names_and_counts_the_rest() -> None:
    places = Places()
    for number in range(60):
        places.peer(f"host{number}", model=f"model{number:02}")
    with pytest.raises(NotFound) as refused:
        places.router.offer(places.ticket(model="other"), places.now)
    assert refused.value.remedy.endswith("model48, model49 and 10 more")
