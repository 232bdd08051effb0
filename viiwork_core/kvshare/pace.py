"""Pace: how many transfers of a model run at a time, and how fast they are together."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import anyio

from viiwork_core.clock import Clock


@dataclass(frozen=True, slots=True)
class Limits:
    """For the transfers of one model."""

    parallel: int = 1
    bytes_per_s: float = 0.0
    """All of them together; 0: no limit."""


class Pace:
    """Spreads what is sent over time. Nothing is saved up: after a pause it goes on as fast as before, no faster.

    Its methods may be called from any thread.
    """

    def __init__(self, bytes_per_s: float, clock: Clock) -> None:
        self._rate, self._clock, self._lock = bytes_per_s, clock, threading.Lock()
        self._free_at = 0.0
        """When all that was let through would have been sent at that rate."""

    def wait_s(self, size: int) -> float:
        """Seconds until so many bytes may go, which are taken to do so then. Parallel transfers take turns."""
        if not self._rate:
            return 0.0
        with self._lock:
            now = self._clock.monotonic()
            begins = max(now, self._free_at)
            self._free_at = begins + size / self._rate
        return begins - now

    async def pass_on(self, size: int) -> None:
        """Wait until so many bytes may go."""
        if wait_s := self.wait_s(size):
            await anyio.sleep(wait_s)
