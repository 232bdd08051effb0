"""What a node knows of a session that others served, and what it keeps of one that is forgotten."""

from __future__ import annotations

from viiwork_core.mesh.report import HeadReport
from viiwork_core.routing.conversation import Mark
from viiwork_core.routing.heads import Conversations, Head

SESSION, OTHER = "5e" * 16, "07" * 16


def head(turn: int, session: str = SESSION) -> Head:
    return Head(turn, Mark(None, None), session, 100 * turn, turn)


def test_the_newest_turn_is_that_of_whoever_knows_most() -> None:
    known = Conversations()
    assert known.newest_turn("m", SESSION) == 0
    known.relayed("b", "m", head(3), 1.0)
    assert known.newest_turn("m", SESSION) == 3
    known.report("c", [("m", [HeadReport("0" * 16, SESSION, 10, 5), HeadReport("1" * 16, SESSION, 10, 4)])], 2.0)
    assert known.newest_turn("m", SESSION) == 5
    assert known.newest_turn("n", SESSION) == 0
    assert known.newest_turn("m", OTHER) == 0
    known.forget("c")
    assert known.newest_turn("m", SESSION) == 3


def test_a_forgotten_session_was_never_relayed() -> None:
    known = Conversations()
    for turn in range(1, 9):
        known.relayed("b", "m", head(turn), float(turn))
    known.relayed("b", "m", head(1, OTHER), 9.0)
    known.drop(SESSION)
    assert not known.known("m", SESSION)
    assert known.at("b", "m", SESSION) is None
    assert known.known("m", OTHER)
    assert list(known._relayed_at) == [("m", 1)], "the other's is all that is left"
    known.drop(SESSION)
