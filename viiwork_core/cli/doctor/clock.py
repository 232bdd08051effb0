"""The clock: whether somebody keeps it, and how far those of other members are off."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from viiwork_core.cli.doctor.situation import Situation, ok, problem, warning
from viiwork_core.contracts.doctor import Finding
from viiwork_core.mesh.skew import WARN_S
from viiwork_core.security.signing import SKEW_S

OLDEST: Final = 1_767_225_600
"""Unix seconds of 2026-01-01: no machine that runs this can be earlier."""

_KEPT: Final = "synchronise the clocks (systemd-timesyncd, chrony, or Date & Time on a Mac)"
_UNSYNCHRONISED = 5
"""TIME_ERROR of adjtimex(2)."""

_ROOM = 512
"""Bytes that hold a struct timex on every Linux."""


async def clock(situation: Situation) -> Sequence[Finding]:
    """This machine's clock, and the members'."""
    found = []
    if situation.machine is not None:
        in_mesh = situation.machine.config.mesh.network != "none"
        found.append(judged(time.time(), kept(), in_mesh=in_mesh))
    if situation.running is not None:
        found += _members(situation.running.others)
    return found


def judged(now: float, kept: bool | None, *, in_mesh: bool) -> Finding:
    """What this machine's clock is worth; `kept`: whether somebody synchronises it, None: not known."""
    told = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < OLDEST:
        return problem(f"the clock says {told}", _KEPT)
    if kept is False and in_mesh:
        what = f"nobody synchronises this clock ({told}): at {SKEW_S:.0f} s off, other nodes refuse this one"
        return warning(what, _KEPT)
    return ok(f"the clock says {told}{', and is synchronised' if kept else ''}")


def kept() -> bool | None:
    """Whether the kernel says that the clock is synchronised; None: it cannot be asked."""
    if sys.platform != "linux":
        return None
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(_ROOM))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _UNSYNCHRONISED


def _members(members: Sequence[Mapping[str, Any]]) -> Iterator[Finding]:
    for member in members:
        skew = member.get("clock_skew_s")
        if skew is None:
            continue
        what = f"the clock of {member['node']} is {abs(skew)} s {'ahead' if skew > 0 else 'behind'}"
        if abs(skew) > SKEW_S:
            yield problem(f"{what}: its signed requests are refused", _KEPT)
        elif abs(skew) > WARN_S:
            yield warning(what, _KEPT)
        else:
            yield ok(f"the clock of {member['node']} agrees")
