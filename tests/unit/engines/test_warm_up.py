"""The warm-up, step by step."""

from __future__ import annotations

from viiwork_core.contracts.engine import Phase
from viiwork_core.engines.warm_up import WarmUp


def test_who_needs_none_is_warm_when_ready() -> None:
    warm_up = WarmUp(0.0)
    assert not warm_up.over(1.0, ready=False)
    assert warm_up.over(2.0, ready=True)


def test_only_unbroken_readiness_counts() -> None:
    warm_up = WarmUp(30.0)
    assert not warm_up.over(0.0, ready=True)
    assert not warm_up.over(29.0, ready=True)
    assert not warm_up.over(29.5, ready=False)
    assert not warm_up.over(30.0, ready=True)
    assert not warm_up.over(59.0, ready=True)
    assert warm_up.over(60.0, ready=True)


def test_the_phase_follows_readiness() -> None:
    """A backend whose model is not loaded does not warm up."""
    warm_up = WarmUp(30.0)
    assert warm_up.phase(Phase.FETCHING) is Phase.FETCHING
    warm_up.over(0.0, ready=True)
    assert warm_up.phase(Phase.LOADING) is Phase.WARMING_UP
    warm_up.over(1.0, ready=False)
    assert warm_up.phase(Phase.WARMING_UP) is Phase.LOADING
