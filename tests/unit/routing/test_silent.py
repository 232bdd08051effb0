"""A peer that gossip calls alive and that did not answer when it was asked: nothing goes there until it does."""

from __future__ import annotations

from router_scene import Places, there


def test_one_poll_that_failed_ends_the_routing_there_and_an_answer_brings_it_back() -> None:
    places = Places()
    view = places.peer("peer", slots=4)
    assert there(places.offer(places.ticket())).member.node == "peer"
    places.clock.advance(1)
    places.router.silent(view.member, places.now)
    assert places.offer(places.ticket()) is None
    assert places.router.knows("m"), "what it serves is not forgotten"
    places.clock.advance(1)
    places.peer("peer", slots=4)
    assert len(places.settle()) == 1


def test_a_report_asked_for_before_the_failure_changes_nothing() -> None:
    places = Places()
    view = places.peer("peer", slots=4)
    before = places.now
    places.clock.advance(1)
    places.router.silent(view.member, places.now)
    places.peer("peer", slots=4, asked_at=before + 0.5)
    assert places.offer(places.ticket()) is None
    places.router.silent(view.member, before)
    assert places.offer(places.ticket()) is None


def test_the_silence_of_an_earlier_run_is_nothing_to_the_later_one() -> None:
    places = Places()
    old = places.peer("peer", node_id="1")
    places.peer("peer", node_id="2")
    places.router.silent(old.member, places.now)
    assert there(places.offer(places.ticket())).member.node_id == "2"
    places.router.silent(old.member, places.now)
    places.router.forget("peer")
    places.router.silent(old.member, places.now)
