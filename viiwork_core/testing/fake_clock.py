"""A clock that stands still until a test moves it."""

from __future__ import annotations


class FakeClock:
    """A Clock for tests. Both times move together, and only by `advance`."""

    def __init__(self, monotonic: float = 1000.0, wall: float = 1_800_000_000.0) -> None:
        self._monotonic = monotonic
        self._wall = wall

    def monotonic(self) -> float:
        return self._monotonic

    def wall(self) -> float:
        return self._wall

    def advance(self, seconds: float) -> None:
        """Let time pass. Raises ValueError for a negative time: a monotonic clock never goes back."""
        if seconds < 0:
            raise ValueError(f"time does not go back ({seconds} s)")
        self._monotonic += seconds
        self._wall += seconds

    def step_wall(self, seconds: float) -> None:
        """Set the wall clock forward or back, as an administrator or NTP does; monotonic time stays."""
        self._wall += seconds
