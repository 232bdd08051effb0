"""The book of what each cache holds."""

from __future__ import annotations

from viiwork_core.kvshare.holdings import LOOSE_LIMIT, Held, Holdings

A, B = "a" * 32, "b" * 32


def test_a_slot_holds_the_last_session_put_into_it() -> None:
    book = Holdings()
    book.put("m/0", 1, 3, Held(A, 1, 100))
    assert book.at("m/0", 1, 3) == Held(A, 1, 100)
    assert book.find("m/0", 1, A) == (3, Held(A, 1, 100))
    book.put("m/0", 1, 3, Held(B, 1, 50))
    assert book.find("m/0", 1, A) is None
    assert book.find("m/1", 1, B) is None


def test_the_newest_of_two_copies_of_a_session_is_found() -> None:
    book = Holdings()
    book.put("m/0", 1, 0, Held(A, 2, 200))
    book.put("m/0", 1, 1, Held(A, 1, 100))
    assert book.find("m/0", 1, A) == (0, Held(A, 2, 200))


def test_a_new_incarnation_holds_nothing_and_the_turn_stays_known() -> None:
    book = Holdings()
    book.put("m/0", 1, 0, Held(A, 4, 100))
    assert book.find("m/0", 2, A) is None
    assert book.at("m/0", 2, 0) is None
    assert (book.turn_of(A), book.next_turn(A)) == (4, 5)


def test_what_is_said_of_an_older_incarnation_changes_nothing() -> None:
    book = Holdings()
    book.put("m/0", 2, 0, Held(A, 1, 100))
    book.put("m/0", 1, 0, Held(B, 7, 100))
    book.clear("m/0", 1, 0)
    assert book.at("m/0", 2, 0) == Held(A, 1, 100)
    assert book.find("m/0", 1, A) is None
    assert book.turn_of(B) == 7


def test_an_engine_without_slots_holds_several_sessions() -> None:
    book = Holdings()
    book.put("m/0", 1, None, Held(A, 1, 100))
    book.put("m/0", 1, None, Held(B, 1, 50))
    assert book.find("m/0", 1, A) == (None, Held(A, 1, 100))
    book.clear("m/0", 1, None, A)
    assert book.find("m/0", 1, A) is None
    assert book.find("m/0", 1, B) == (None, Held(B, 1, 50))
    book.clear("m/0", 1, None)
    assert book.find("m/0", 1, B) is None


def test_the_book_of_an_engine_without_slots_is_bounded() -> None:
    book = Holdings()
    for number in range(LOOSE_LIMIT + 1):
        book.put("m/0", 1, None, Held(f"{number:032x}", 1, 1))
    assert book.find("m/0", 1, f"{0:032x}") is None
    assert book.find("m/0", 1, f"{1:032x}") is not None


def test_a_cleared_slot_is_empty() -> None:
    book = Holdings()
    book.put("m/0", 1, 0, Held(A, 1, 100))
    book.clear("m/0", 1, 0)
    assert book.at("m/0", 1, 0) is None


def test_turns_never_go_back() -> None:
    book = Holdings()
    assert (book.turn_of(A), book.next_turn(A)) == (0, 1)
    book.saw(A, 9)
    book.put("m/0", 1, 0, Held(A, 3, 100))
    assert book.turn_of(A) == 9


def test_forget_leaves_nothing() -> None:
    book = Holdings()
    book.put("m/0", 1, 0, Held(A, 2, 100))
    book.put("n/0", 1, None, Held(A, 3, 100))
    book.put("m/0", 1, 1, Held(B, 2, 100))
    book.forget(A)
    assert (book.find("m/0", 1, A), book.find("n/0", 1, A), book.turn_of(A)) == (None, None, 0)
    assert book.find("m/0", 1, B) == (1, Held(B, 2, 100))
