"""The worked example of docs/routing.md comes out as it says."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from viiwork_core import Candidate, NoOptions, Query, Score
from viiwork_core.builtin.priced import BAND, LATER_TURNS, Fastest

PAGE = (Path(__file__).parents[2] / "docs" / "routing.md").read_text(encoding="utf-8")
SESSION = "5e" * 16
ATTIC, CELLAR, SHED = Score(120.0, 900.0), Score(80.0, 400.0), Score(150.0, 2000.0)


def places(*, held: int | None = None, crowd: float = 0.0) -> list[Candidate]:
    return [
        Candidate("attic", True, 2, 2, rtt_ms=0.0, score=ATTIC, held_tokens=held),
        Candidate("cellar", False, 2, 1, rtt_ms=2.0, score=CELLAR, crowd_ms=crowd),
        Candidate("shed", False, 4, 4, rtt_ms=2.0, score=SHED),
    ]


def first(query: Query, candidates: list[Candidate]) -> tuple[str, dict[str, str]]:
    policy = Fastest(NoOptions())
    ranked = policy.rank(query, candidates, random.Random(1))
    prices = {name: f"{price:,.0f}" for name, price in policy.prices(query, candidates).items()}
    return (ranked[0] if ranked else "none"), prices


def test_a_first_turn() -> None:
    query = Query("m", SESSION, 12_000, begins=True, typical=ATTIC)
    assert first(query, places()) == ("cellar", {"attic": "10,920", "cellar": "4,882", "shed": "24,152"})
    assert first(query, places(crowd=4000.0)) == ("attic", {"attic": "10,920", "cellar": "36,882", "shed": "24,152"})
    assert f"band ends at {BAND} x 4,882 = {BAND * 4882:,.0f} ms" in PAGE
    assert f"4,882 + {LATER_TURNS} x 4,000 = 36,882 ms" in " ".join(PAGE.split())
    for price in ("10,920", "4,882", "24,152"):
        assert f"{price} ms" in " ".join(PAGE.split())


def test_a_second_turn() -> None:
    query = Query("m", SESSION, 12_600, continues=True, typical=ATTIC)
    chosen, prices = first(query, places(held=11_800))
    assert (chosen, prices["attic"], prices["cellar"]) == ("attic", "840", "5,122")
    assert "120 + 0.8 x 900 = 840 ms. cellar: 5,122 ms" in PAGE


@pytest.mark.parametrize(("wait", "bound", "chosen"), [(3000.0, "4,800", "none"), (6000.0, "8,550", "cellar")])
def test_a_second_turn_whose_host_is_full(wait: float, bound: str, chosen: str) -> None:
    full = Candidate("attic", True, 2, 0, rtt_ms=0.0, score=ATTIC, held_tokens=11_800, wait_ms=wait)
    query = Query("m", SESSION, 12_600, continues=True, typical=ATTIC, full=(full,))
    assert first(query, places()[1:])[0] == chosen
    assert f"{BAND * (840 + wait):,.0f}" == bound
    assert f"{bound} ms" in PAGE
