"""What a node publishes of the conversations that it served."""

from __future__ import annotations

from viiwork_core.routing.conversation import Mark
from viiwork_core.routing.heads import Head, Kind
from viiwork_core.routing.published import ACTIVE_S, COUNT_S, LIMIT, Place, Published


def head(session: str, turn: int = 1) -> Head:
    return Head(turn, Mark(), session, 10, turn)


def test_what_is_still_held_is_published_as_it_lies_now() -> None:
    book = Published()
    for session in ("live", "replica", "gone"):
        book.ended("m", head(session), 0.0)
    places = {"live": Place(Kind.LIVE, "m/0", 12), "replica": Place(Kind.REPLICA, None, 9)}
    told = {one.session: (one.kind, one.backend, one.tokens) for one in book.heads("m", places.get)}
    assert told == {"live": (Kind.LIVE, "m/0", 12), "replica": (Kind.REPLICA, None, 9)}
    assert book.heads("other", places.get) == []


def test_the_newest_turn_counts_and_the_longest_silent_go_first() -> None:
    book = Published()
    for n in range(LIMIT + 10):
        book.ended("m", head(f"s{n}"), float(n))
    book.ended("m", head("s20", turn=2), 999.0)
    told = book.heads("m", lambda session: Place(Kind.LIVE, session, 1))
    assert len(told) == LIMIT
    assert told[0].session == "s10"
    assert (told[-1].session, told[-1].turn) == ("s20", 2)


def test_what_seldom_comes_back_is_hardly_active() -> None:
    book = Published()
    for n in range(40):
        book.ended("m", head(f"once {n}"), 0.0)
    assert book.active("m", 1.0) == 40, "nothing is known of them yet"
    for n in range(10):
        book.ended("m", head(f"new {n}"), 2 * ACTIVE_S)
    assert book.active("m", 2 * ACTIVE_S) == 0
    for n in range(10):
        book.ended("m", head(f"new {n}", turn=2), 2 * ACTIVE_S)
    assert book.active("m", 2 * ACTIVE_S) == 0, "counted a moment ago"
    assert book.active("m", 2 * ACTIVE_S + COUNT_S) == 10, "these came back"


def test_who_was_silent_for_long_is_not_active() -> None:
    book = Published()
    book.ended("m", head("a"), 0.0)
    book.ended("m", head("b"), ACTIVE_S / 2)
    assert [book.active("m", at) for at in (1.0, ACTIVE_S + 1, 2 * ACTIVE_S)] == [2, 1, 0]
    book.forget("b")
    assert book.active("m", ACTIVE_S / 2) == 1
