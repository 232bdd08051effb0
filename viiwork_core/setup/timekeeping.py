"""Timekeeping: whether this machine's clock can be right, and somebody keeps it."""

from __future__ import annotations

import ctypes
import sys
import time
from typing import Final

from viiwork_core.contracts.doctor import Finding, Level
from viiwork_core.security.signing import SKEW_S

OLDEST: Final = 1_767_225_600
"""Unix seconds of 2026-01-01: no machine that runs this can be earlier."""

REMEDY: Final = "synchronise the clocks (systemd-timesyncd, chrony, or Date & Time on a Mac)"

_UNSYNCHRONISED = 5
"""TIME_ERROR of adjtimex(2)."""

_ROOM = 512
"""Bytes that hold a struct timex on every Linux."""


def judged(now: float, kept: bool | None, *, in_mesh: bool) -> Finding:
    """What this machine's clock is worth; `kept`: whether somebody synchronises it, None: not known."""
    told = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(now))
    if now < OLDEST:
        return Finding(Level.PROBLEM, f"the clock says {told}", REMEDY)
    if kept is False and in_mesh:
        what = f"nobody synchronises this clock ({told}): at {SKEW_S:.0f} s off, other nodes refuse this one"
        return Finding(Level.WARNING, what, REMEDY)
    return Finding(Level.OK, f"the clock says {told}{', and is synchronised' if kept else ''}")


def kept() -> bool | None:
    """Whether the kernel says that the clock is synchronised; None: it cannot be asked."""
    if sys.platform != "linux":
        return None
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(_ROOM))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else state != _UNSYNCHRONISED
