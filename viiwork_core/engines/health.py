"""When is a backend given up, and what then? A state machine without I/O; the time is handed in with each event.

    starting: only the end of startup_timeout or of the process ends patience
    running:  max_failures failed probes in a row = given up; while requests run, only after respawn_grace
    after:    one free retry for an early exit, then max_respawns launches more, then dead

The budget is whole again after ten minutes of unbroken health. So a crash loop ends, and a fault a week does not add
up to a dead backend.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

REFILL_AFTER = 600.0
"""Seconds of unbroken health after which the respawn budget is whole again."""
EARLY_EXIT = 10.0
"""An exit within so many seconds of the launch is rather the port's fault than the model's."""
_LONGEST_DELAY = 30.0


@dataclass(frozen=True, slots=True)
class HealthSettings:
    """Times in seconds."""

    interval: float = 5.0
    timeout: float = 10.0
    max_failures: int = 3
    respawn_grace: float = 60.0
    max_respawns: int = 3


class Verdict(StrEnum):
    """What follows when a launch has come to its end."""

    RETRY = "retry"
    """Launch again; it costs nothing."""
    RESPAWN = "respawn"
    """Launch again, out of the budget."""
    DEAD = "dead"


class Ladder:
    """The health of one backend over all its launches."""

    def __init__(self, settings: HealthSettings, startup_timeout: float) -> None:
        self._settings = settings
        self._startup_timeout = startup_timeout
        self._launched_at = 0.0
        self._ready = False
        self._failures = 0
        self._given_up_at: float | None = None
        self._healthy_since: float | None = None
        self._used = 0
        self._retried = False

    @property
    def delay(self) -> float:
        """Seconds to wait before the launch that the last verdict granted: 0 for a retry or the first respawn, then
        2, 4, 8... so that a crash loop does not also keep the machine busy."""
        return 0.0 if self._used < 2 else min(2.0 ** (self._used - 1), _LONGEST_DELAY)

    def launched(self, now: float) -> None:
        """A launch begins."""
        self._launched_at = now
        self._ready = False
        self._failures = 0
        self._given_up_at = self._healthy_since = None

    def patience_over(self, now: float) -> bool:
        """Has the start taken too long?"""
        return not self._ready and now - self._launched_at >= self._startup_timeout

    def passed(self, now: float) -> None:
        """A probe said ready."""
        self._ready = True
        self._failures = 0
        self._given_up_at = None
        if self._healthy_since is None:
            self._healthy_since = now
        self._refill(now)

    def failed(self, now: float, *, counts: bool, busy: bool) -> bool:
        """A probe of a running backend failed. True: end the process now.

        `counts` is False for a probe out of turn: a burst of aborts must not use up max_failures within a second.
        `busy`: requests run, as far as is known.
        """
        self._refill(now)
        self._healthy_since = None
        self._failures += counts
        if self._failures < self._settings.max_failures:
            return False
        if self._given_up_at is None:
            self._given_up_at = now
        return not busy or now - self._given_up_at >= self._settings.respawn_grace

    def ended(self, now: float, *, by_itself: bool) -> Verdict:
        """The launch is over; `by_itself`: nobody ended the process."""
        self._refill(now)
        early = by_itself and not self._ready and now - self._launched_at <= EARLY_EXIT
        if early and not self._retried:
            self._retried = True
            return Verdict.RETRY
        if self._used >= self._settings.max_respawns:
            return Verdict.DEAD
        self._used += 1
        return Verdict.RESPAWN

    def _refill(self, now: float) -> None:
        if self._healthy_since is not None and now - self._healthy_since >= REFILL_AFTER:
            self._used = 0
            self._retried = False
