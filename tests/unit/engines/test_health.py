"""The health ladder, with the time handed in."""

from __future__ import annotations

import pytest

from viiwork_core.engines.health import HealthSettings, Ladder, Verdict

SETTINGS = HealthSettings(max_failures=3, respawn_grace=60.0, max_respawns=2)


def ladder(settings: HealthSettings = SETTINGS, *, ready: bool = False) -> Ladder:
    made = Ladder(settings, startup_timeout=100.0)
    made.launched(0.0)
    if ready:
        made.passed(20.0)
    return made


def test_a_start_may_take_startup_timeout() -> None:
    starting = ladder()
    assert not starting.patience_over(99.9)
    assert starting.patience_over(100.0)


def test_a_ready_backend_needs_no_patience() -> None:
    assert not ladder(ready=True).patience_over(1e6)


def test_max_failures_in_a_row_give_up() -> None:
    running = ladder(ready=True)
    assert [running.failed(30.0 + at, counts=True, busy=False) for at in range(3)] == [False, False, True]


def test_a_passed_probe_ends_the_row() -> None:
    running = ladder(ready=True)
    for at in (30.0, 31.0):
        running.failed(at, counts=True, busy=False)
    running.passed(32.0)
    assert not running.failed(33.0, counts=True, busy=False)


def test_failures_out_of_turn_do_not_count() -> None:
    running = ladder(ready=True)
    assert not any(running.failed(30.0, counts=False, busy=False) for _ in range(100))


def test_running_requests_get_respawn_grace() -> None:
    running = ladder(ready=True)
    for at in (30.0, 35.0):
        running.failed(at, counts=True, busy=True)
    assert not running.failed(40.0, counts=True, busy=True)
    assert not running.failed(99.9, counts=True, busy=True)
    assert running.failed(100.0, counts=True, busy=True)


def test_the_grace_ends_with_the_requests() -> None:
    running = ladder(ready=True)
    for at in (30.0, 35.0, 40.0):
        running.failed(at, counts=True, busy=True)
    assert running.failed(45.0, counts=True, busy=False)


def test_an_early_exit_has_one_free_retry_and_then_costs_the_budget() -> None:
    crashing = ladder()
    verdicts = []
    for at in range(4):
        crashing.launched(float(at))
        verdicts.append(crashing.ended(at + 0.5, by_itself=True))
    assert verdicts == [Verdict.RETRY, Verdict.RESPAWN, Verdict.RESPAWN, Verdict.DEAD]


@pytest.mark.parametrize(("at", "by_itself", "ready"), [(10.1, True, False), (5.0, False, False), (25.0, True, True)])
def test_other_ends_have_no_free_retry(at: float, by_itself: bool, ready: bool) -> None:
    assert ladder(ready=ready).ended(at, by_itself=by_itself) is Verdict.RESPAWN


def test_no_budget_means_dead_at_the_first_end() -> None:
    assert ladder(HealthSettings(max_respawns=0), ready=True).ended(30.0, by_itself=True) is Verdict.DEAD


def used_up() -> Ladder:
    worn = ladder(ready=True)
    for at in (30.0, 40.0):
        assert worn.ended(at, by_itself=True) is Verdict.RESPAWN
        worn.launched(at)
        worn.passed(at + 5.0)
    return worn


def test_ten_minutes_of_health_refill_the_budget() -> None:
    worn = used_up()
    assert worn.ended(45.0 + 600.0, by_itself=True) is Verdict.RESPAWN


def test_less_does_not() -> None:
    worn = used_up()
    assert worn.ended(45.0 + 599.9, by_itself=True) is Verdict.DEAD


def test_only_unbroken_health_refills() -> None:
    worn = used_up()
    worn.failed(400.0, counts=True, busy=False)
    worn.passed(405.0)
    assert worn.ended(700.0, by_itself=True) is Verdict.DEAD


def test_respawns_of_a_crash_loop_come_slower_and_slower() -> None:
    crashing = ladder(HealthSettings(max_respawns=7))
    delays = []
    for _ in range(7):
        crashing.ended(50.0, by_itself=False)
        delays.append(crashing.delay)
    assert delays == [0.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
