"""Who comes first, and why."""

from __future__ import annotations

import random

import pytest
from pydantic import ValidationError
from viiwork_core import Candidate, Query

from viiwork_cheapest_power.policy import CheapestPower, CheapestPowerOptions

WATTS = {"attic": 180.0, "cellar": 320.0, "study": 95.0}


def host(name: str, free: int = 2, held: int | None = None) -> Candidate:
    return Candidate(name, local=False, slots=4, free=free, held_tokens=held)


def ranked(*places: Candidate, watts: dict[str, float] = WATTS) -> list[str]:
    policy = CheapestPower(CheapestPowerOptions(watts=watts))
    return list(policy.rank(Query("m", None, 900), places, random.Random(0)))


def test_the_host_that_draws_least_comes_first() -> None:
    assert ranked(host("cellar", free=4), host("attic"), host("study", free=1)) == ["study", "attic", "cellar"]


def test_a_host_without_room_is_no_candidate() -> None:
    assert ranked(host("cellar"), host("attic")) == ["attic", "cellar"]


def test_what_is_not_known_comes_last() -> None:
    assert ranked(host("new", free=4), host("cellar")) == ["cellar", "new"]


def test_equals_are_ranked_by_their_free_slots() -> None:
    equal = {"a": 100.0, "b": 100.0, "c": 100.0}
    assert ranked(host("a", free=1), host("b", free=3), host("c", free=2), watts=equal) == ["b", "c", "a"]


def test_among_equals_a_session_stays_where_its_tokens_are() -> None:
    assert ranked(host("m/0", free=3), host("m/1", free=1, held=900)) == ["m/1", "m/0"]


def test_a_session_moves_to_a_cheaper_host() -> None:
    assert ranked(host("cellar", held=900), host("study")) == ["study", "cellar"]


@pytest.mark.parametrize("watts", [{"attic": -1}, {"attic": "much"}, {"attic": float("nan")}, ["attic"], None])
def test_impossible_figures_are_refused(watts: object) -> None:
    with pytest.raises(ValidationError, match="watts"):
        CheapestPowerOptions.model_validate({"watts": watts})
