"""?prefer=: hosts that a client would rather have, where they have room, and nothing else."""

from __future__ import annotations

from router_scene import Places, here, there

from viiwork_core.contracts.policy import Query
from viiwork_core.routing.ticket import Ticket


def test_a_preferred_host_comes_first_in_the_client_s_order() -> None:
    places = Places()
    places.backend(8)
    for name in ("a", "b", "c"):
        places.peer(name, slots=1)
    assert there(places.offer(places.ticket(prefer=("c", "b")))).member.node == "c"
    assert there(places.offer(places.ticket(prefer=("c", "b")))).member.node == "b", "c is full"
    assert there(places.offer(places.ticket(prefer=("c", "b")))).member.node == "a", "as if there were no list"
    assert here(places.offer(places.ticket(prefer=("here",)))).reservation.backend == "m/0"


def test_the_policy_is_not_asked_where_a_preferred_host_takes_it() -> None:
    places = Places()
    places.peer("a")
    places.peer("b")
    places.offer(places.ticket(prefer=("b",)))
    assert places.policy.asked == []


def test_names_that_nobody_has_change_nothing() -> None:
    places = Places()
    places.peer("a")
    assert there(places.offer(places.ticket(prefer=("127.0.0.9:80", "z")))).member.node == "a"


def test_a_preferred_host_that_just_refused_is_not_insisted_on() -> None:
    places = Places()
    places.peer("a")
    places.peer("b")
    ticket = places.ticket(prefer=("b",))
    refused = there(places.offer(ticket))
    places.router.refused(refused, places.now)
    ticket.tried.add("b")
    assert there(places.router.pick(ticket, places.now)).member.node == "a"


def test_a_waiter_keeps_its_preference_its_session_and_its_size() -> None:
    places = Places()
    places.peer("a", slots=1, busy=1)
    places.peer("b", slots=1, busy=1)
    query = Query("m", "5e55", 4096)
    ticket = Ticket(query, 1, places.now + 20, prefer=("b",))
    assert places.offer(ticket) is None
    places.clock.advance(0.1)
    places.peer("a")
    places.peer("b")
    ((same, placement),) = places.settle()
    assert same is ticket
    assert there(placement).member.node == "b"
    (choice,) = ticket.choices
    assert (choice.query.session, choice.query.prompt_tokens, choice.by) == ("5e55", 4096, None)


def test_a_retry_keeps_it_too() -> None:
    places = Places()
    for name in ("a", "b", "c"):
        places.peer(name)
    ticket = places.ticket(prefer=("c", "b"))
    first = there(places.offer(ticket))
    places.router.refused(first, places.now)
    places.router.returned(first)
    ticket.tried.add("c")
    assert there(places.router.pick(ticket, places.now)).member.node == "b"


def test_a_pin_beats_a_preference() -> None:
    places = Places()
    places.peer("a")
    places.peer("b")
    assert there(places.offer(places.ticket(pin="a", prefer=("b",)))).member.node == "a"
