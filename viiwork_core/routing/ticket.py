"""A request on its way to a place: what it asks for, where it has been, and until when it may wait."""

from __future__ import annotations

from typing import Final

import msgspec

from viiwork_core.contracts.policy import Query
from viiwork_core.engines.slots import Reservation
from viiwork_core.mesh.member import Member
from viiwork_core.routing.choice import Choice

PATIENCE: Final = 0.8
"""Share of routing.queue_timeout that a request waits for the place that holds its session while another has room."""


class Ticket(msgspec.Struct, eq=False):
    """One request in the router's hands."""

    query: Query
    weight: int
    """Slots that it takes: n x prompts, at most a backend's slots."""

    deadline: float
    """Monotonic time after which it no longer waits; one budget for the whole request."""

    pin: str | None = None
    """The only host that may serve it (?host=)."""

    prefer: tuple[str, ...] = ()
    """Hosts that are tried first, in this order, where they have room (?prefer=)."""

    request: str = ""
    """The request's id."""

    key: str = ""
    """The API key that it waits as, by name; "" without keys."""

    share: int = 1
    """That key's weight, at least 1."""

    queued_at: float = 0.0
    """Monotonic time at which it was queued last."""

    waited: float = 0.0
    """Seconds that it spent in the queue."""

    patient_until: float = 0.0
    """Monotonic time until which it may wait for the place that holds its session, though another has room."""

    holding_out: bool = False
    """It does so now, and keeps nobody behind it from that room."""

    tried: set[str] = msgspec.field(default_factory=set)
    """Where it was refused or failed: other hosts by name, this host's backends by id."""

    choices: list[Choice] = msgspec.field(default_factory=list)
    """How its places were chosen, the last ones."""

    held_out: Choice | None = None
    """The last choice to wait for a full host that holds its session, though another had room."""


class Here(msgspec.Struct, frozen=True):
    """Placed on this node: the slots are reserved already."""

    reservation: Reservation

    @property
    def name(self) -> str:
        """What stands in Ticket.tried."""
        return self.reservation.backend


class There(msgspec.Struct, frozen=True, eq=False):
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
