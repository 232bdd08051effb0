"""How the score of a model follows from its answers."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viiwork_core import Score
from viiwork_core.routing.scores import BUCKET_S, BUCKETS, Baseline, Sample, Scores, fit

ENGINE = Score(overhead_ms=80.0, ms_per_1k=500.0)


def scores(**keys: str) -> Scores:
    made = Scores()
    made.follow(keys or {"m": "k"})
    return made


def serve(made: Scores, *prompts: int, engine: Score = ENGINE, at: float = 0.0, model: str = "m") -> None:
    for tokens in prompts:
        made.observe(model, uncached=tokens, first_token_ms=engine.first_token_ms(tokens), now=at)


def test_both_terms_are_found() -> None:
    made = scores()
    serve(made, 10, 20, 30, 1000, 2000, 8000)
    assert made.score("m", 1.0) == Score(80.0, 500.0)


def test_without_a_long_prompt_nothing_is_measured() -> None:
    made = scores()
    serve(made, *range(1, 400))
    assert made.score("m", 1.0) is None
    assert made.score("stranger", 1.0) is None


def test_a_rate_of_zero_is_not_measured() -> None:
    assert fit([Sample(10, 900.0), Sample(1000, 5.0)], None) is None


def test_one_slow_request_sets_nothing() -> None:
    made = scores()
    serve(made, *[10] * 9, *[4000] * 9)
    made.observe("m", uncached=4000, first_token_ms=130_000.0, now=0.0)
    made.observe("m", uncached=10, first_token_ms=130_000.0, now=0.0)
    assert made.score("m", 1.0) == Score(80.0, 500.0)


def test_noise_is_averaged_out() -> None:
    made, rng = scores(), random.Random(1)
    for n in range(200):
        tokens = rng.choice([20, 100, 1000, 3000, 9000])
        ms = ENGINE.first_token_ms(tokens) * rng.uniform(0.9, 1.1)
        made.observe("m", uncached=tokens, first_token_ms=ms, now=n / 10)
    found = made.score("m", 21.0)
    assert found is not None
    assert found.ms_per_1k == pytest.approx(500.0, rel=0.06)


def test_a_baseline_holds_when_it_is_quiet_and_yields_to_what_is_measured() -> None:
    made = Scores()
    made.follow({"m": "k"}, {"m": Baseline(Score(100.0, 1000.0), "k")})
    assert made.score("m", 0.0) == Score(100.0, 1000.0)
    serve(made, *[10] * 5, *[4000] * 5)
    halfway = made.score("m", 1.0)
    assert halfway is not None
    assert 500.0 < halfway.ms_per_1k < 1000.0
    serve(made, *[10] * 200, *[4000] * 50)
    later = made.score("m", 2.0)
    assert later is not None
    assert later.ms_per_1k < halfway.ms_per_1k


def test_samples_age_and_become_the_baseline() -> None:
    made = scores()
    serve(made, 10, 10, 10, *[1000] * 5)
    assert made.score("m", 0.0) == Score(80.0, 500.0)
    aged = BUCKET_S * (BUCKETS + 1)
    assert made.score("m", aged) == Score(80.0, 500.0)
    kept = made.baselines()["m"]
    assert (kept.key, round(kept.score.overhead_ms), round(kept.score.ms_per_1k)) == ("k", 80, 500)
    slower = Score(80.0, 4000.0)
    serve(made, *[1000] * 50, engine=slower, at=aged)
    found = made.score("m", aged + 1)
    assert found is not None
    assert found.ms_per_1k > 3000.0


def test_a_changed_setting_begins_anew() -> None:
    made = scores()
    serve(made, 10, 10, 10, 1000)
    made.follow({"m": "other"})
    assert made.score("m", 1.0) is None
    made.follow({"m": "third"}, {"m": Baseline(ENGINE, "second")})
    assert made.score("m", 1.0) is None


def test_what_a_follow_leaves_alone_is_kept() -> None:
    made = scores(a="1", b="2")
    serve(made, 10, 10, 10, 1000, model="a")
    made.follow({"a": "1"})
    assert made.score("a", 1.0) == Score(80.0, 500.0)
    assert made.score("b", 1.0) is None


def test_two_significant_figures() -> None:
    made = scores()
    serve(made, 10, 10, 10, 1000, engine=Score(83.7, 1234.0))
    assert made.score("m", 1.0) == Score(84.0, 1200.0)


def test_nonsense_is_not_learned_from() -> None:
    made = scores()
    made.observe("m", uncached=-5, first_token_ms=10.0, now=0.0)
    made.observe("m", uncached=5000, first_token_ms=0.0, now=0.0)
    assert made.score("m", 1.0) is None


@given(st.lists(st.builds(Sample, st.integers(0, 1 << 20), st.floats(0.001, 1e7)), max_size=200))
def test_a_score_is_never_below_zero(samples: list[Sample]) -> None:
    for baseline in (None, ENGINE):
        found = fit(samples, baseline)
        assert found is None or (found.overhead_ms >= 0 and found.ms_per_1k > 0)


def test_typical_is_the_median_of_each_term() -> None:
    assert Score.median([]) is None
    assert Score.median([Score(1, 30), Score(2, 10), Score(9, 20)]) == Score(2, 20)


def test_the_time_in_a_slot_is_a_median_of_late() -> None:
    made = scores()
    assert made.service_s("m") is None
    for seconds in (1.0, 1.0, 9.0):
        made.served("m", seconds)
    assert made.service_s("m") == 1.0
    for _ in range(100):
        made.served("m", 5.0)
    assert made.service_s("m") == 5.0
    made.served("m", 0.0)
    made.served("stranger", 1.0)
    assert made.service_s("stranger") is None
