"""Policies that break the contract. A stranger's plugin."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from viiwork_core import Candidate, Policy, Query, hookimpl


class Raises(Policy):
    name = "raises"

    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        raise RuntimeError("no idea")


class Stranger(Policy):
    """Ranks a place that nobody has."""

    name = "stranger"

    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        return ["elsewhere"]


class Late(Policy):
    name = "late"

    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        time.sleep(0.2)
        return [place.id for place in candidates]


@hookimpl
def viiwork_register_policy() -> list[type[Policy]]:
    return [Raises, Stranger, Late]
