"""Ranks by the power that each host draws."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar

from pydantic import Field
from viiwork_core import Candidate, PluginOptions, Policy, Query

Watts = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class CheapestPowerOptions(PluginOptions):
    """The block `cheapest_power` of `routing`."""

    watts: Mapping[str, Watts] = {}
    """What each host draws while it answers, by its name."""


class CheapestPower(Policy):
    """The host that draws least comes first; where that is not known, last."""

    name = "cheapest_power"
    Options: ClassVar[type[PluginOptions]] = CheapestPowerOptions

    def __init__(self, options: PluginOptions) -> None:
        super().__init__(options)
        assert isinstance(options, CheapestPowerOptions)
        self._watts = options.watts

    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        return [place.id for place in sorted(candidates, key=self._order)]

    def _order(self, place: Candidate) -> tuple[float, bool, int, str]:
        # The name comes last, so that equals are ranked alike in whatever order they come.
        return self._watts.get(place.id, math.inf), not place.held_tokens, -place.free, place.id
