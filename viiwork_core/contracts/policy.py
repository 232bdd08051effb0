"""The policy contract: in which order a request should try the places that have room.

The same contract ranks hosts at the entry node and backends at the executing node.
"""

from __future__ import annotations

import random
import statistics
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from viiwork_core.contracts.options import NoOptions, PluginOptions


@dataclass(frozen=True, slots=True)
class Score:
    """How soon a place gives the first token of an answer, as measured there."""

    overhead_ms: float
    """What every request takes, however short."""

    ms_per_1k: float
    """What 1,000 prompt tokens take that its cache does not hold; over 0."""

    def first_token_ms(self, uncached: int) -> float:
        """Predicted time to the first token of a prompt with so many uncached tokens, in ms; at least 1."""
        return max(1.0, self.overhead_ms + self.ms_per_1k * uncached / 1000)

    @staticmethod
    def median(scores: Sequence[Score]) -> Score | None:
        """The medians of both terms, each for itself; None: there is no score."""
        if not scores:
            return None
        overheads, rates = [score.overhead_ms for score in scores], [score.ms_per_1k for score in scores]
        return Score(statistics.median_high(overheads), statistics.median_high(rates))


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place with slots: a host at the entry node, a backend at the executing node."""

    id: str
    local: bool
    slots: int
    free: int
    """Slots that a request can take now, own forwards in flight counted; 0 only in Query.full."""

    waiting: int | None = None
    """Requests that wait inside the engine; None: unknown."""

    rtt_ms: float | None = None
    """Round trip to it; 0 for local, None: not measured."""

    held_tokens: int | None = None
    """Tokens of this session that its engine holds, as far as is known; None: unknown."""

    score: Score | None = None
    """None: not measured yet."""

    replica_tokens: int | None = None
    """Tokens of this session in a replica that lies there, ready to be imported; None: there is none."""

    import_ms: float | None = None
    """What importing that replica would take; None: not measured yet."""

    wait_ms: float = 0.0
    """Expected wait for a slot there; over 0 only in Query.full."""

    crowd_ms: float = 0.0
    """Expected wait of each later turn of a conversation that begins there now, for the conversations that are active
    there already; 0 where there are slots for all, or where it is not known how long a request takes."""


@dataclass(frozen=True, slots=True)
class Query:
    """The request, as far as choosing needs it."""

    model: str
    session: str | None
    """Keyed hash of the session, hex; None: the request belongs to none."""

    prompt_tokens: int
    """Estimated size of the prompt, in tokens."""

    continues: bool = False
    """Whether an earlier turn of the session is known to have been served somewhere."""

    typical: Score | None = None
    """The median score of all places that serve the model, full ones too; None: nobody has one."""

    full: tuple[Candidate, ...] = ()
    """Places without a free slot that hold tokens of the session, while the request is still willing to wait."""

    begins: bool = False
    """Whether it is known to be the session's first turn, by which no other node can know it: it may go anywhere."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a request ended, told to the policy that ranked it."""

    model: str
    candidate: str
    session: str | None
    status: int
    """HTTP status; 499 for a client that left."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    first_token_ms: float | None = None
    """From slot granted to the first token of a stream, thinking counted, or the first byte of a plain answer; None:
    there was none."""


class Policy(ABC):
    """Ranks candidates. Sync, no I/O, no logging, no clock: a ranking and the reservation are one step.

    Called on the data loop for each request; it should take well under a millisecond.
    """

    name: ClassVar[str]
    Options: ClassVar[type[PluginOptions]] = NoOptions

    def __init__(self, options: PluginOptions) -> None:
        self.options = options

    @abstractmethod
    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        """The ids of `candidates`, best first. Every candidate has a free slot. An id left out is not tried: with none
        left, the request waits, for a place of `query.full` or until its patience ends and that is empty.

        All chance comes from `rng`. A ranking, not a pick, so that a retry needs no second decision.
        """

    def observe(self, outcome: Outcome) -> None:
        """Learn from a request that ended. Sync, and never raises."""
        return

    def explain(self, query: Query, candidates: Sequence[Candidate], first: str) -> str:
        """In a few words, why `first`, an id of `candidates`, was ranked first; empty: the policy does not say.

        `viiwork why` shows it. Called when somebody asks, some time after `rank` and with what that was given: it must
        not go by what the policy has learned since, and changes nothing. An error costs only the words. Since API 1.3.
        """
        return ""

    def prices(self, query: Query, candidates: Sequence[Candidate]) -> Mapping[str, float]:
        """What the ranking went by, in ms, by id, lower being better; empty: it went by something else.

        The column PRICE of `viiwork why`. Called as `explain` is. Since API 1.3.
        """
        return {}
