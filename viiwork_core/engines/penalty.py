"""A penalty: how long a place that has refused or failed is passed over.

What fails fast looks idle, and would draw all requests; what stays silent costs each of them its patience. So the first
failure holds a place off for a moment, or for as long as it was silent, and each further one in a row for twice as
long. When that is over one request is let through on trial, and the rest once it has been answered. Whether there is
another place to go to instead is for others to say.
"""

from __future__ import annotations

from dataclasses import dataclass

FIRST = 0.25
"""Seconds for the first failure: a lost race for a slot should cost a session nothing."""

LONGEST = 16.0
"""Seconds, for failures that come at once: less than the usual routing.queue_timeout, so that a trial comes before
whoever waits has waited in vain."""

SILENCES = 4
"""So many times as long as it was silent is the longest for a place that was."""

_NEVER = float("-inf")


@dataclass(slots=True)
class Penalty:
    """What one place has brought upon itself. Pure; times are monotonic seconds."""

    failures: int = 0
    """In a row."""

    failed_at: float = _NEVER
    until: float = _NEVER
    span: float = FIRST
    """Seconds that the last failure holds it off, and a trial all others."""

    def active(self, now: float) -> bool:
        """Whether the place should be passed over."""
        return now < self.until

    def sent(self, now: float) -> None:
        """A request goes there: a place on trial gets one at a time."""
        if self.failures:
            self.until = now + self.span

    def failed(self, begun: float, now: float, *, silence: float) -> None:
        """A request that was sent at `begun` was refused or failed, after so many seconds of `silence`.

        Those that were under way when the place failed last are the same failure.
        """
        if begun < self.failed_at:
            return
        self.failures += 1
        self.failed_at = now
        longer = 2.0 ** min(self.failures - 1, 30)
        self.span = min(max(FIRST, silence) * longer, max(LONGEST, SILENCES * silence))
        self.until = now + self.span

    def served(self, answered_at: float) -> None:
        """A request was answered, its first byte at `answered_at`. An answer from before the failure proves nothing."""
        if answered_at > self.failed_at:
            self.failures, self.until = 0, _NEVER
