"""The entry node's queue: first in, first out per model, bounded, one deadline a request. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from viiwork_core.errors import QueueFull
from viiwork_core.routing.ticket import Placement, Ticket


class Queue:
    """Tickets that wait for room."""

    def __init__(self, bound: int) -> None:
        self._bound = bound
        self._waiting: dict[str, deque[Ticket]] = {}

    def __len__(self) -> int:
        return sum(len(tickets) for tickets in self._waiting.values())

    def models(self) -> tuple[str, ...]:
        """The models that somebody waits for."""
        return tuple(self._waiting)

    def length(self, model: str) -> int:
        """How many wait for `model`."""
        return len(self._waiting.get(model, ()))

    def blocks(self, ticket: Ticket) -> bool:
        """Whether somebody waits whom `ticket` must not overtake. A pinned waiter holds nobody up."""
        return ticket.pin is None and any(other.pin is None for other in self._waiting.get(ticket.query.model, ()))

    def add(self, ticket: Ticket, *, again: bool = False) -> None:
        """Queue a ticket; one that was placed before and refused (`again`) keeps its turn at the head.

        Raises QueueFull.
        """
        model = ticket.query.model
        if self.length(model) >= self._bound:
            raise QueueFull(f"queue for {model} is full", retry_after=2)
        tickets = self._waiting.setdefault(model, deque())
        if again:
            tickets.appendleft(ticket)
        else:
            tickets.append(ticket)

    def remove(self, ticket: Ticket) -> None:
        """Forget a ticket; no matter if it does not wait."""
        tickets = self._waiting.get(ticket.query.model)
        if tickets is not None and ticket in tickets:
            tickets.remove(ticket)
            self._tidy(ticket.query.model)

    def _tidy(self, model: str) -> None:
        if not self._waiting[model]:
            del self._waiting[model]

    def settle(self, model: str, place: Callable[[Ticket], Placement | None]) -> list[tuple[Ticket, Placement]]:
        """Place whoever can be placed, in order.

        The first unpinned ticket without a place ends it for the unpinned ones behind it that want as much: what it
        cannot have they cannot either, and nobody overtakes.
        """
        placed: list[tuple[Ticket, Placement]] = []
        stuck = False
        for ticket in tuple(self._waiting.get(model, ())):
            if stuck and ticket.pin is None:
                continue
            placement = place(ticket)
            if placement is not None:
                placed.append((ticket, placement))
            elif ticket.pin is None:
                stuck = True
        self._drop(ticket for ticket, _ in placed)
        return placed

    def expire(self, now: float) -> list[Ticket]:
        """Take out and return the tickets whose deadline has passed."""
        late = [ticket for tickets in self._waiting.values() for ticket in tickets if ticket.deadline <= now]
        self._drop(late)
        return late

    def take(self, model: str) -> list[Ticket]:
        """Take out and return all tickets of a model that nobody serves any more."""
        return list(self._waiting.pop(model, ()))

    def next_deadline(self) -> float | None:
        """The earliest deadline of all; None: nobody waits."""
        return min((ticket.deadline for tickets in self._waiting.values() for ticket in tickets), default=None)

    def _drop(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tuple(tickets):
            self.remove(ticket)
