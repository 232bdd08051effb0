"""A choice of a host: what was known when it was made. Kept as it was, put into words only when somebody asks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from viiwork_core.contracts.policy import Candidate, Query

MOST_CHOICES: Final = 8
"""Choices of one request that are kept, the last ones."""


class Choice(msgspec.Struct, frozen=True):
    """One choice, made for one request. It shares the frozen values that the policy was given."""

    at: float
    """Monotonic time."""

    query: Query
    candidates: Sequence[Candidate]
    ranking: Sequence[str]
    """As the policy said; empty where it was not asked."""

    chosen: str | None
    """The host that took it; None: to wait was better than any of them."""

    by: str | None
    """The policy that ranked; None: the client's preference decided before it was asked."""


def kept(choices: list[Choice], choice: Choice) -> None:
    """Add a choice to those of its request."""
    if len(choices) >= MOST_CHOICES:
        del choices[0]
    choices.append(choice)
