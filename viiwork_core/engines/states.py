"""The states of a backend, and what the rest of the node sees of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from viiwork_core.contracts.engine import Address, Load, Phase


class BackendState(StrEnum):
    """starting -> healthy <-> unhealthy -> starting (a respawn) | dead.

    A wanted end: draining -> stopped, and then parked, starting again with another plan, or gone altogether.
    """

    STARTING = "starting"
    HEALTHY = "healthy"
    UNHEALTHY = "unhealthy"
    DEAD = "dead"
    DRAINING = "draining"
    """Takes no new requests; those that run may finish."""

    STOPPED = "stopped"
    PARKED = "parked"
    """Taken down by the operator, until told otherwise."""


@dataclass(frozen=True, slots=True)
class BackendView:
    """One backend at one moment. Only its supervisor makes these, and its berth while it is parked; everyone else
    reads them."""

    id: str
    """MODEL/N"""

    model: str
    engine: str
    state: BackendState
    incarnation: int
    """Counts launches from 1; what a slot held under an earlier one is gone. 0: not launched yet."""

    slots: int
    """As the engine says, else as configured."""

    phase: Phase | None = None
    progress: float | None = None
    reason: str | None = None
    """Why it is not healthy, in words for the operator."""

    address: Address | None = None
    context: int | None = None
    load: Load | None = None
    load_asked_at: float | None = None
    """Monotonic time at which `load` was asked for; facts newer than this are not undone by it."""

    fingerprint: str | None = None
    """Equal fingerprints make a restore right; None: its caches are not shared."""

    unshared: str | None = None
    """Why they are not, where they were to be."""

    version: str | None = None
    """Of the engine, in at most 40 of A-Za-z0-9.+_-; None: it does not say."""

    pid: int | None = None
    respawns: int = 0
    since: float = 0.0
    """Monotonic time of the last change of state."""

    goal: BackendState | None = None
    """What becomes of it, once it drains: parked, stopped for good, or starting with another plan. Else None."""

    @property
    def leaving(self) -> bool:
        """Whether it drains or has ended, and does not come back by itself: nobody should wait for it."""
        return self.goal in (BackendState.PARKED, BackendState.STOPPED)


GONE: Final[Mapping[str, Any]] = {
    "address": None,
    "pid": None,
    "progress": None,
    "context": None,
    "load": None,
    "load_asked_at": None,
    "fingerprint": None,
    "unshared": None,
    "version": None,
}
"""What a backend without a process is no longer known for."""
