"""Pace: how many transfers of a model run at a time, and how fast they are together."""

from __future__ import annotations

from dataclasses import dataclass

import anyio
import anyio.from_thread

from viiwork_core.clock import Clock


@dataclass(frozen=True, slots=True)
class Limits:
    """For the transfers of one model."""

    parallel: int = 1
    bytes_per_s: float = 0.0
    """All of them together; 0: no limit."""


class Pace:
    """Spreads what is sent over time. Nothing is saved up: after a pause it goes on as fast as before, no faster."""

    def __init__(self, bytes_per_s: float, clock: Clock) -> None:
        self._rate, self._clock = bytes_per_s, clock
        self._free_at = 0.0
        """When all that was let through would have been sent at that rate."""

    async def pass_on(self, size: int) -> None:
        """Wait until so many bytes may go. Those of parallel transfers take turns."""
        if not self._rate:
            return
        now = self._clock.monotonic()
        begins = max(now, self._free_at)
        self._free_at = begins + size / self._rate
        if begins > now:
            await anyio.sleep(begins - now)

    def wait(self, size: int) -> None:
        """The same, in a thread of anyio's."""
        if self._rate:
            anyio.from_thread.run(self.pass_on, size)
