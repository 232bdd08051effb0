"""The line before a model: who waits, for how long, and how long it will take."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

MOST_TOLD: Final = 64
"""Waiting requests of one model that are listed; the line may be longer."""

SHORTEST_RETRY: Final = 2
"""Seconds, whatever is measured."""

LONGEST_RETRY: Final = 600
"""Seconds. What is measured may be far off, and a client should not be sent away for hours."""

Serving = tuple[int, float | None]
"""A host of the model: its slots, and the seconds that a request holds one; None: not measured."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A request that waits."""

    request: str
    """The request's id."""

    position: int
    """In its model's line, from 1."""

    waited_s: float
    """So far, in all."""

    estimate_s: float | None
    """Until it gets a slot, if all before it stay; None: nobody has measured how long a request takes."""


def estimate_s(position: int, hosts: Iterable[Serving]) -> float | None:
    """Seconds until so many slots have come free at `hosts`, which all work; None: not measured.

    A host that has not measured is taken to be as the others are.
    """
    known = [(slots, seconds) for slots, seconds in hosts if slots]
    measured = [seconds for _, seconds in known if seconds]
    if not measured:
        return None
    usual = statistics.median(measured)
    return position / sum(slots / (seconds or usual) for slots, seconds in known)


def retry_after(estimate: float | None) -> int:
    """The Retry-After of a request for which no slot came: when one at the end of the line would have got it."""
    if estimate is None:
        return SHORTEST_RETRY
    return max(SHORTEST_RETRY, math.ceil(min(estimate, LONGEST_RETRY)))
