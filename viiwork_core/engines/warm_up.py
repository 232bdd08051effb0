"""The warm-up: how long an engine must have been ready, without a break, before it gets its first request."""

from __future__ import annotations

from viiwork_core.contracts.engine import Phase


class WarmUp:
    """The warm-up of one launch. A state machine without I/O; the time is handed in with each answer, in seconds."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None

    def over(self, now: float, *, ready: bool) -> bool:
        """Take in the engine's answer. True: it has been ready for long enough."""
        if not ready:
            self._since = None
        elif self._since is None:
            self._since = now
        return self._since is not None and now - self._since >= self._seconds

    def phase(self, known: Phase | None) -> Phase | None:
        """What the backend is doing, where its engine said `known` last. Only what is ready warms up."""
        if self._since is not None:
            return Phase.WARMING_UP
        return Phase.LOADING if known is Phase.WARMING_UP else known
