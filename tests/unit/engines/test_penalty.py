"""How long a place is passed over."""

from __future__ import annotations

import pytest

from viiwork_core.engines.penalty import FIRST, LONGEST, SILENCES, Penalty


def failed(penalty: Penalty, now: float, *, silence: float = 0.0) -> None:
    """A request that was sent just before, or so long ago as it met silence, fails."""
    penalty.failed(now - silence, now, silence=silence)


def test_each_failure_in_a_row_doubles_it_up_to_a_bound() -> None:
    penalty, now, spans = Penalty(), 0.0, []
    assert not penalty.active(now)
    for _ in range(12):
        failed(penalty, now)
        spans.append(penalty.until - now)
        assert penalty.active(penalty.until - 0.01)
        assert not penalty.active(penalty.until)
        now = penalty.until
    assert spans[:4] == [FIRST, 2 * FIRST, 4 * FIRST, 8 * FIRST]
    assert max(spans) == spans[-1] == LONGEST


def test_a_thousand_failures_are_no_overflow() -> None:
    penalty = Penalty()
    for number in range(2000):
        failed(penalty, float(number))
    assert penalty.span == LONGEST


def test_silence_holds_off_for_as_long_as_it_lasted_and_then_longer() -> None:
    penalty = Penalty()
    spans = []
    for _ in range(5):
        now = penalty.failed_at + 1000 if penalty.failures else 0.0
        failed(penalty, now, silence=30.0)
        spans.append(penalty.span)
    assert spans == [30.0, 60.0, 120.0, 120.0, 120.0]
    assert spans[-1] == SILENCES * 30.0


def test_what_falls_together_is_one_failure() -> None:
    penalty = Penalty()
    for now in (1.0, 1.1, 1.2):
        penalty.failed(0.5, now, silence=0.0)
    assert (penalty.failures, penalty.until) == (1, 1.0 + FIRST)


def test_an_answer_ends_it_and_one_from_before_does_not() -> None:
    penalty = Penalty()
    failed(penalty, 1.0)
    failed(penalty, 2.0)
    penalty.served(1.9)
    assert penalty.active(2.0)
    penalty.served(2.1)
    assert not penalty.active(2.0)
    failed(penalty, 3.0)
    assert penalty.span == FIRST, "it is the first in a row again"


@pytest.mark.parametrize("failures", [0, 1])
def test_a_place_on_trial_gets_one_request_at_a_time(failures: int) -> None:
    penalty = Penalty()
    for _ in range(failures):
        failed(penalty, 1.0)
    now = penalty.until if failures else 1.0
    assert not penalty.active(now)
    penalty.sent(now)
    assert penalty.active(now) is bool(failures)
    assert not penalty.active(now + FIRST), "a trial that nobody tells the end of is over after a while"
