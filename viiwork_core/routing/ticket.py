"""A request on its way to a place: what it asks for, where it has been, and until when it may wait."""

from __future__ import annotations

from dataclasses import dataclass, field

from viiwork_core.contracts.policy import Query
from viiwork_core.engines.slots import Reservation
from viiwork_core.mesh.member import Member


@dataclass(slots=True, eq=False)
class Ticket:
    """One request in the router's hands."""

    query: Query
    weight: int
    """Slots that it takes: n x prompts, at most a backend's slots."""

    deadline: float
    """Monotonic time after which it no longer waits; one budget for the whole request."""

    pin: str | None = None
    """The only host that may serve it (?host=)."""

    waited: float = 0.0
    """Seconds that it spent in the queue."""

    tried: set[str] = field(default_factory=set)
    """Where it was refused or failed: other hosts by name, this host's backends by id."""


@dataclass(frozen=True, slots=True)
class Here:
    """Placed on this node: the slots are reserved already."""

    reservation: Reservation

    @property
    def name(self) -> str:
        """What stands in Ticket.tried."""
        return self.reservation.backend


@dataclass(frozen=True, slots=True, eq=False)
class There:
    """Placed on another node, whose own book decides; it counts as taken until `Router.returned`."""

    member: Member
    model: str
    weight: int
    begun: float
    """Monotonic time of the placement."""

    @property
    def name(self) -> str:
        """What stands in Ticket.tried."""
        return self.member.node


Placement = Here | There
