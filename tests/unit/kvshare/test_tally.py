"""What moving caches took, the rates that follow, where turns ran, and which models are not moved any more."""

from __future__ import annotations

import pytest

from viiwork_core.kvshare.movability import MOST, Movability
from viiwork_core.kvshare.planner import Warmth
from viiwork_core.kvshare.switches import MEMORY, SESSIONS, Switch, Switches
from viiwork_core.kvshare.tally import FRESH_S, GIB, Tally
from viiwork_core.testing.fake_clock import FakeClock


def test_the_rate_of_imports_is_the_median_of_late() -> None:
    clock = FakeClock()
    tally = Tally(clock)
    assert tally.import_s("m", GIB) is None
    assert tally.import_ms_per_1k("m") is None
    for seconds in (2.0, 3.0, 60.0):
        tally.imported("m", seconds, GIB, 50_000)
    assert tally.import_s("m", GIB // 2) == pytest.approx(1.5)
    assert tally.import_ms_per_1k("m") == pytest.approx(60.0)
    assert tally.import_s("other", GIB) is None
    clock.advance(FRESH_S + 1)
    assert tally.import_s("m", GIB) is None, "or a rate that forbids imports would stand for ever"


def test_an_import_that_came_too_late_is_known_to_take_that_long() -> None:
    tally = Tally(FakeClock())
    tally.import_failed("m", 4.0, GIB, 50_000, late=False)
    assert tally.import_s("m", GIB) is None
    tally.import_failed("m", 4.0, GIB, 50_000, late=True)
    assert tally.import_s("m", GIB) == pytest.approx(4.0)
    assert (tally.of("m").import_failed, tally.of("m").import_seconds) == (2, 8.0)


def test_a_stall_is_a_second_a_gib_until_a_large_save_was_measured() -> None:
    tally = Tally(FakeClock())
    assert tally.stall_s("m", 50_000) is None, "nobody knows yet how large a token is"
    tally.saved("m", 0.5, 20_000 * 1000, 1000)
    assert tally.stall_s("m", 50_000) == pytest.approx(1e9 / GIB)
    tally.saved("m", 4.0, 20_000 * 50_000, 50_000)
    assert tally.stall_s("m", 50_000) == pytest.approx(4.0)


def test_what_is_told_of_a_model() -> None:
    tally = Tally(FakeClock())
    tally.turn("m", Switch.HOST, Warmth.WARM)
    tally.turn("m", Switch.HOST, Warmth.WARM)
    tally.turn("m", Switch.NONE, None)
    tally.of("m").sent_bytes += 7
    assert "sent_share" not in tally.told("m")
    tally.of("m").sent_file_bytes += 70
    told = tally.told("m")
    assert told["sent_share"] == 0.1
    assert told["turns"] == {"host": {"warm": 2}, "none": {"unknown": 1}}
    assert told["sent_bytes"] == 7
    assert "import_s_per_gib" not in told
    assert tally.turns == {("m", "host", "warm"): 2, ("m", "none", "unknown"): 1}
    assert tally.sizes == {("m", "sent"): 7, ("m", "sent_file"): 70, ("m", "received"): 0}
    assert tally.times[("m", "send")] == 0.0
    assert tally.results[("m", "useless")] == 0


def test_switches_are_told_by_where_the_turn_before_ran() -> None:
    switches = Switches()

    def ended(number: int, backend: str = "m/0", *, continues: bool = False) -> Switch | None:
        return switches.ended("m", "s", number=number, backend=backend, continues=continues)

    assert ended(1) is None
    assert ended(2) is Switch.NONE
    assert ended(3, "m/1") is Switch.BACKEND
    assert ended(5, "m/1") is Switch.HOST, "turn 4 ran elsewhere"
    switches.forget("s")
    assert ended(1) is None
    switches.forget("s")
    assert ended(1, continues=True) is Switch.HOST, "somebody has served it before"


def test_the_chance_of_a_move_follows_what_is_seen() -> None:
    switches = Switches()
    assert switches.chance("m") == pytest.approx(0.2)
    for turn in range(1, 202):
        switches.ended("m", "s", number=turn, backend="m/0")
    assert switches.chance("m") < 0.03
    for turn in range(300, 300 + 2 * int(MEMORY), 2):
        switches.ended("m", "s", number=turn, backend="m/0")
    assert switches.chance("m") > 0.6, "what was seen long ago counts less"


def test_switches_remember_a_bounded_number_of_sessions() -> None:
    switches = Switches()
    for number in range(SESSIONS + 1):
        switches.ended("m", f"{number}", number=1, backend="m/0")
    assert switches.ended("m", "0", number=2, backend="m/0") is Switch.HOST
    assert switches.ended("m", f"{SESSIONS}", number=2, backend="m/0") is Switch.NONE


def test_an_engine_that_never_saves_turns_its_model_off_once_until_the_model_changes() -> None:
    movability = Movability()
    assert movability.unsupported("m", "f", "501")
    assert not movability.unsupported("m", "f", "501"), "told once"
    assert movability.off("m", "f") == "501"
    assert movability.off("m", "g") is None, "a backend with other settings is another one"
    movability.follow("m")
    assert movability.off("m", "f") is None


def test_two_useless_restores_turn_a_model_off_and_one_good_one_is_credit() -> None:
    movability = Movability()
    assert not movability.judged("m", "f", useful=False)
    assert movability.judged("m", "f", useful=False), "told once"
    assert not movability.judged("m", "f", useful=False)
    assert movability.off("m", "f")
    assert not movability.off("m", "g"), "another fingerprint is another model"
    assert not movability.off("m", None)
    movability.follow("m")
    assert not movability.off("m", "f")
    for _ in range(20):
        movability.judged("m", "f", useful=True)
    for _ in range(MOST - 1):
        assert not movability.judged("m", "f", useful=False)
    assert movability.judged("m", "f", useful=False)
