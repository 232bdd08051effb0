"""The fake clock moves only when it is told to."""

import pytest

from viiwork_core.clock import Clock
from viiwork_core.testing.fake_clock import FakeClock


def test_it_stands_still_until_it_is_advanced() -> None:
    clock: Clock = FakeClock(monotonic=5.0, wall=100.0)
    assert [clock.monotonic(), clock.monotonic(), clock.wall()] == [5.0, 5.0, 100.0]


def test_advance_moves_both_times() -> None:
    clock = FakeClock(monotonic=5.0, wall=100.0)
    clock.advance(1.5)
    assert (clock.monotonic(), clock.wall()) == (6.5, 101.5)


def test_a_step_moves_only_the_wall_clock() -> None:
    clock = FakeClock(monotonic=5.0, wall=100.0)
    clock.step_wall(-60)
    assert (clock.monotonic(), clock.wall()) == (5.0, 40.0)


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError, match="does not go back"):
        FakeClock().advance(-1)
