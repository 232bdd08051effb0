"""Scores: how soon this node gives the first token of each model, fitted from its own answers.

The model is overhead + rate x uncached prompt tokens. Both terms are medians, over buckets of a minute, so that one
slow request sets nothing; a remembered baseline carries them over quiet times and restarts. Buckets, thresholds and
weights are those of the reference implementation.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from viiwork_core.contracts.policy import Score

BUCKETS = 10
BUCKET_S = 60.0
BUCKET_MAX = 256
"""Samples of one bucket; more add nothing."""

BIG = 512
"""Uncached tokens from which a prompt's reading can be told from the overhead."""

FEWEST_SMALL = 3
"""Short prompts that a new overhead needs beside a baseline."""

FEWEST_BIG = 5
"""Long prompts that make a new baseline; also the weight of the old one in the blend."""

SERVED = 64
"""Requests of late whose time in a slot is remembered."""

SERVICE_STEPS = 8
"""The median is computed again when one in so many of its samples is new."""

ROUNDS = 3
"""Times that the two terms are fitted, each with the other's last value."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """A score that was measured earlier, and under which settings."""

    score: Score
    key: str
    """Digest of what the speed depends on; another key makes it worthless."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer."""

    uncached: int
    """Prompt tokens that the engine had to read."""

    ms: float
    """From the slot granted to the first token."""

    @property
    def thousands(self) -> float:
        """Uncached tokens, in thousands."""
        return self.uncached / 1000


@dataclass(slots=True)
class _Model:
    key: str
    baseline: Score | None = None
    coming: Score | None = None
    """What the present samples would make the baseline. It becomes that once they have aged, or a sample would count
    twice: in the fit and in what the fit is blended with."""

    turned: int = 0
    """The bucket in which the baseline was last replaced."""

    buckets: deque[tuple[int, list[Sample]]] = field(default_factory=lambda: deque(maxlen=BUCKETS))
    service: deque[float] = field(default_factory=lambda: deque(maxlen=SERVED))
    """Seconds that requests held a slot, of late."""

    service_s: float | None = None
    """Their median."""

    unheard: int = 0
    """Of these, those that came after the median was taken."""

    fitted: Score | None = None
    """What the samples and the baseline say; kept until one of them changes."""

    fitted_at: int | None = None
    """The bucket in which `fitted` was made; None: it is out of date."""


class Scores:
    """The scores of this node's models. Pure; times are monotonic seconds."""

    def __init__(self) -> None:
        self._models: dict[str, _Model] = {}

    def follow(self, keys: Mapping[str, str], baselines: Mapping[str, Baseline] | None = None) -> None:
        """The models are these from now on, each with the digest of what its speed depends on.

        One whose digest has changed starts without a score. `baselines`: what an earlier run of the node left.
        """
        for name in self._models.keys() - keys.keys():
            del self._models[name]
        for name, key in keys.items():
            known = self._models.get(name)
            if known is None or known.key != key:
                left = (baselines or {}).get(name)
                self._models[name] = _Model(key, left.score if left is not None and left.key == key else None)

    def observe(self, model: str, *, uncached: int, first_token_ms: float, now: float) -> None:
        """Learn from an answer: its prompt's uncached tokens, and the time from its slot to the first token."""
        known = self._models.get(model)
        if known is None or uncached < 0 or first_token_ms <= 0:
            return
        number = int(now // BUCKET_S)
        if not known.buckets or known.buckets[-1][0] != number:
            known.buckets.append((number, []))
        samples = known.buckets[-1][1]
        if len(samples) < BUCKET_MAX:
            samples.append(Sample(uncached, first_token_ms))
            known.fitted_at = None

    def served(self, model: str, seconds: float) -> None:
        """Learn how long a request held its slot, however it ended."""
        known = self._models.get(model)
        if known is None or seconds <= 0:
            return
        known.service.append(seconds)
        known.unheard += 1
        # Asked more than once a request: the median of many is hardly another after one more.
        if known.unheard * SERVICE_STEPS > len(known.service):
            known.service_s, known.unheard = statistics.median(known.service), 0

    def service_s(self, model: str) -> float | None:
        """Seconds that a request for the model holds a slot, the median of late; None: not measured."""
        known = self._models.get(model)
        return known.service_s if known is not None else None

    def score(self, model: str, now: float) -> Score | None:
        """The model's score, to two significant figures; None: not measured."""
        known = self._models.get(model)
        if known is None:
            return None
        number = int(now // BUCKET_S)
        if known.fitted_at != number:
            self._refit(known, number)
        return known.fitted

    def _refit(self, known: _Model, number: int) -> None:
        samples = [one for bucket, held in known.buckets if number - bucket < BUCKETS for one in held]
        if number - known.turned >= BUCKETS:
            known.baseline, known.coming, known.turned = known.coming or known.baseline, None, number
        fitted = fit(samples, known.baseline)
        if fitted is not None and sum(one.uncached >= BIG for one in samples) >= FEWEST_BIG:
            known.coming = fitted
        known.fitted, known.fitted_at = _published(fitted), number

    def baselines(self) -> dict[str, Baseline]:
        """What is worth keeping for the next run."""
        best = {name: (one.coming or one.baseline, one.key) for name, one in self._models.items()}
        return {name: Baseline(score, key) for name, (score, key) in best.items() if score is not None}


def fit(samples: Sequence[Sample], baseline: Score | None) -> Score | None:
    """Both terms from samples, blended with the baseline; None: a prompt's reading was never measured."""
    small = [one for one in samples if one.uncached < BIG]
    big = [one for one in samples if one.uncached >= BIG]
    if baseline is not None and len(small) < FEWEST_SMALL:
        small = []
    overhead = baseline.overhead_ms if baseline else 0.0
    rate = baseline.ms_per_1k if baseline else 0.0
    for _ in range(ROUNDS):
        if small:
            overhead = statistics.median(max(one.ms - rate * one.thousands, 0.0) for one in small)
        if big:
            rate = statistics.median(max(one.ms - overhead, 0.0) / one.thousands for one in big)
    if baseline is not None:
        overhead = _blend(overhead, baseline.overhead_ms, len(small))
        rate = _blend(rate, baseline.ms_per_1k, len(big))
    # A rate of zero would draw every long prompt to one host: it means that nothing was measured.
    return Score(overhead, rate) if rate > 0 else None


def _blend(new: float, old: float, samples: int) -> float:
    weight = samples / (samples + FEWEST_BIG)
    return weight * new + (1 - weight) * old


def _published(score: Score | None) -> Score | None:
    return None if score is None else Score(_rounded(score.overhead_ms), _rounded(score.ms_per_1k))


def _rounded(value: float) -> float:
    return max(1.0, float(f"{value:.2g}"))
