"""What the router notes of its choices, for whoever asks why."""

from __future__ import annotations

import random
from collections.abc import Sequence

from router_scene import InOrder, Places, here, there

from viiwork_core import Candidate, Query
from viiwork_core.mesh.report import HeadReport
from viiwork_core.registry.guard import GuardedPolicy
from viiwork_core.routing.candidates import Candidates
from viiwork_core.routing.choice import MOST_CHOICES
from viiwork_core.routing.heads import Conversations
from viiwork_core.testing.fake_clock import FakeClock


class Patient(InOrder):
    """Would rather wait for a full place."""

    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        return [] if query.full else super().rank(query, candidates, rng)


def test_a_choice_is_noted_as_it_was_made() -> None:
    places = Places()
    places.backend()
    places.peer("a", slots=4, busy=1)
    ticket = places.ticket()
    there(places.offer(ticket))
    (choice,) = ticket.choices
    assert [one.id for one in choice.candidates] == ["here", "a"]
    assert list(choice.ranking) == ["a", "here"]
    assert (choice.chosen, choice.by, choice.at) == ("a", "in-order", places.now)
    # The very values that the policy was given: nothing was made for the note.
    assert choice.candidates[1] is places.policy.candidate("a")


def test_every_try_has_its_own_and_only_the_last_are_kept() -> None:
    places = Places()
    for number in range(MOST_CHOICES + 3):
        places.peer(f"{number:02}")
    ticket = places.ticket()
    there(places.offer(ticket))
    for number in range(MOST_CHOICES + 2):
        ticket.tried.add(f"{number:02}")
        there(places.router.pick(ticket, places.now))
    assert [choice.chosen for choice in ticket.choices] == [f"{number:02}" for number in range(3, MOST_CHOICES + 3)]


def test_a_wait_without_any_room_is_no_choice() -> None:
    places = Places()
    places.peer("a", slots=1, busy=1)
    ticket = places.ticket()
    places.offer(ticket)
    assert (ticket.choices, ticket.held_out) == ([], None)


def test_holding_out_for_a_full_host_is_noted() -> None:
    told = Conversations()
    places = Places(policy=Patient(), candidates=lambda local: Candidates(local, told))
    places.peer("warm", slots=1, busy=1)
    places.peer("cold", slots=1)
    session = "5e" * 16
    told.report("warm", [("m", [HeadReport("0" * 16, session, 900, 3)])], places.now)
    ticket = places.ticket()
    ticket.query = Query("m", session, 1000, continues=True)
    ticket.patient_until = places.now + 10
    assert places.offer(ticket) is None
    assert ticket.holding_out
    held_out = ticket.held_out
    assert held_out is not None
    assert ([one.id for one in held_out.candidates], held_out.chosen) == (["cold"], None)
    assert [one.id for one in held_out.query.full] == ["warm"]
    places.clock.advance(11)
    places.peer("cold", slots=1)
    ((_, placement),) = places.settle()
    assert there(placement).member.node == "cold"
    assert ticket.held_out is held_out, "that it waited is part of the story"


def test_who_stood_in_for_a_policy_that_failed_is_noted() -> None:
    class Odd(InOrder):
        def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
            return ["a stranger"]

    strikes: list[str] = []
    places = Places(ranking=GuardedPolicy(Odd(), clock=FakeClock(), on_strike=strikes.append))
    places.backend()
    ticket = places.ticket()
    here(places.offer(ticket))
    assert [choice.by for choice in ticket.choices] == ["least_busy"]
    assert strikes == ["policy in-order: rank failed: PluginError: the ranking names a place that is no candidate"]
