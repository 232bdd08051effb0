"""An address that never answered is tried less and less often; one that did is tried as before."""

from __future__ import annotations

from itertools import pairwise

from viiwork_core.mesh.dialling import Dialling
from viiwork_core.testing.fake_clock import FakeClock

ADDRESS, FIRST_S, LONGEST_S, LOOK_S = "127.0.0.2:1", 30.0, 300.0, 60.0


def tries(dialling: Dialling, clock: FakeClock, seconds: float, *, every: float = LOOK_S) -> list[float]:
    """When the address was tried without an answer, looked at so often."""
    began, at = clock.monotonic(), []
    while clock.monotonic() - began < seconds:
        if dialling.is_due(ADDRESS):
            at.append(clock.monotonic() - began)
            dialling.note(ADDRESS, answered=False)
        clock.advance(every)
    return at


def test_the_waits_grow_to_some_minutes() -> None:
    clock = FakeClock()
    at = tries(Dialling(clock, first_s=FIRST_S, longest_s=LONGEST_S), clock, 3600)
    waits = [after - before for before, after in pairwise(at)]
    assert waits[:5] == [60, 60, 120, 240, 300]
    assert set(waits[5:]) == {LONGEST_S}


def test_an_answer_sets_it_back() -> None:
    clock = FakeClock()
    dialling = Dialling(clock, first_s=FIRST_S, longest_s=LONGEST_S)
    tries(dialling, clock, 900)
    dialling.note(ADDRESS, answered=True)
    assert tries(dialling, clock, 300) == [0, 60, 120, 180, 240], "it has answered once: it is tried at every look"


def test_what_is_not_seen_any_more_is_forgotten() -> None:
    clock = FakeClock()
    dialling = Dialling(clock, first_s=FIRST_S, longest_s=LONGEST_S)
    tries(dialling, clock, 900)
    dialling.note(ADDRESS, answered=False)
    assert not dialling.is_due(ADDRESS)
    dialling.keep(["127.0.0.3:1"])
    assert dialling.is_due(ADDRESS)
