"""The clock: whether somebody keeps it, and how far those of other members are off."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from viiwork_core.cli.doctor.situation import Situation, ok, problem, warning
from viiwork_core.contracts.doctor import Finding
from viiwork_core.mesh.skew import WARN_S
from viiwork_core.security.signing import SKEW_S
from viiwork_core.setup.timekeeping import REMEDY, judged, kept


async def clock(situation: Situation) -> Sequence[Finding]:
    """This machine's clock, and the members'."""
    found = []
    if situation.machine is not None:
        in_mesh = situation.machine.config.mesh.network != "none"
        found.append(judged(time.time(), kept(), in_mesh=in_mesh))
    if situation.running is not None:
        found += _members(situation.running.others)
    return found


def _members(members: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    for member in members:
        skew = member.get("clock_skew_s")
        if skew is None:
            continue
        what = f"the clock of {member['node']} is {abs(skew)} s {'ahead' if skew > 0 else 'behind'}"
        if abs(skew) > SKEW_S:
            yield problem(f"{what}: its signed requests are refused", REMEDY)
        elif abs(skew) > WARN_S:
            yield warning(what, REMEDY)
        else:
            yield ok(f"the clock of {member['node']} agrees")
