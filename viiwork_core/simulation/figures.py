"""The figures of a run: what share of the turns found their cache, and how long the first token took."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from viiwork_core.simulation.run import Run, Turn

WARM, PARTLY = 0.9, 0.3


@dataclass(frozen=True, slots=True)
class Figures:
    """Shares in percent, times in seconds. Turns whose history was compacted and first turns are not among the hits:
    no placement can find a cache that the client has replaced."""

    policy: str
    names: str
    turns: int
    hit_80: float
    """Turns that reused at least 80 % of the context before."""

    hit_90: float
    moved_host: float
    """Turns that ran on another host than the one before, of the same agent."""

    moved_backend: float
    """Turns that ran on another backend of the same host."""

    first_token_p50: float
    first_token_p90: float
    first_token_p99: float
    moved_p50: float | None
    """Median time to the first token of turns that changed host; None: there were none."""

    switched: int
    """Turns that changed host and whose history was not compacted."""

    switched_warm: float
    """Of these, that reused at least 90 % of the prompt."""

    switched_partly: float
    """That reused 30 to 90 %."""

    refused: int
    """Answers 429."""

    fairness: float
    """Jain's index of the agents' turns: 1 = all got equally many."""

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)


def figures(run: Run) -> Figures:
    """The figures of a run."""
    turns = sorted(run.turns, key=lambda turn: (turn.agent, turn.number))
    pairs = [(a, b) for a, b in pairwise(turns) if a.agent == b.agent]
    hosts = [b for a, b in pairs if a.host != b.host]
    backends = [b for a, b in pairs if a.host == b.host and a.backend != b.backend]
    following = [turn for turn in turns if turn.before]
    switched = [turn for turn in hosts if turn.before]
    times = [turn.first_token_s for turn in turns]
    return Figures(
        policy=run.policy,
        names=run.names.value,
        turns=len(turns),
        hit_80=_share([turn for turn in following if reused(turn) >= 0.8], following),
        hit_90=_share([turn for turn in following if reused(turn) >= 0.9], following),
        moved_host=_share(hosts, pairs),
        moved_backend=_share(backends, pairs),
        first_token_p50=quantile(times, 0.5),
        first_token_p90=quantile(times, 0.9),
        first_token_p99=quantile(times, 0.99),
        moved_p50=quantile([turn.first_token_s for turn in hosts], 0.5) if hosts else None,
        switched=len(switched),
        switched_warm=_share([turn for turn in switched if turn.cached >= WARM * turn.tokens], switched),
        switched_partly=_share(
            [turn for turn in switched if PARTLY * turn.tokens <= turn.cached < WARM * turn.tokens], switched
        ),
        refused=run.refused,
        fairness=_fairness(turns),
    )


def reused(turn: Turn) -> float:
    """The share of the context before that a turn found in the cache. 0 for one that had none."""
    return min(1.0, turn.cached / turn.before) if turn.before else 0.0


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie; 0 for none."""
    if not values:
        return 0.0
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def _share(some: Sequence[object], all_: Sequence[object]) -> float:
    return 100 * len(some) / len(all_) if all_ else 0.0


def _fairness(turns: Sequence[Turn]) -> float:
    counts = list(Counter(turn.agent for turn in turns).values())
    if not counts:
        return 1.0
    return statistics.fmean(counts) ** 2 / statistics.fmean(count * count for count in counts)
