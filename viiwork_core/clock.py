"""Time as a value that is handed in: production reads the system's clocks, tests and the simulator their own."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the node asks of time."""

    def monotonic(self) -> float:
        """Seconds since an arbitrary start, never going back. For every age, deadline and order of events."""
        ...

    def wall(self) -> float:
        """Unix seconds. Only for the signature's skew window and for what people read."""
        ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()
