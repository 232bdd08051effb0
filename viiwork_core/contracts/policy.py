"""The policy contract: in which order a request should try the places that have room.

The same contract ranks hosts at the entry node and backends at the executing node.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from viiwork_core.contracts.options import NoOptions, PluginOptions


@dataclass(frozen=True, slots=True)
class Query:
    """The request, as far as choosing needs it."""

    model: str
    session: str | None
    """Keyed hash of the session, hex; None: the request belongs to none."""

    prompt_tokens: int
    """Estimated size of the prompt, in tokens."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A place with slots: a host at the entry node, a backend at the executing node."""

    id: str
    local: bool
    slots: int
    free: int
    """Slots that a request can take now, own forwards in flight counted."""

    waiting: int | None = None
    """Requests that wait inside the engine; None: unknown."""

    rtt_ms: float | None = None
    """Round trip to it; 0 for local, None: not measured."""

    held_tokens: int | None = None
    """Tokens of this session that its engine holds, as far as is known; None: unknown."""


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
    """From slot granted to the engine's first byte of body; None: there was none."""


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
        """The ids of `candidates`, best first. Every candidate has a free slot. An id left out is not tried.

        All chance comes from `rng`. A ranking, not a pick, so that a retry needs no second decision.
        """

    def observe(self, outcome: Outcome) -> None:
        """Learn from a request that ended. Sync, and never raises."""
        return
