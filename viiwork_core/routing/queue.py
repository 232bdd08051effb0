"""The entry node's queue: first in, first out per model, bounded, one deadline a request. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import TypeVar

from viiwork_core.errors import QueueFull
from viiwork_core.routing.ticket import Placement, Ticket

Lost = TypeVar("Lost")


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

    def tickets(self, model: str, most: int) -> list[Ticket]:
        """The first `most` that wait for `model`, in order."""
        return list(islice(self._waiting.get(model, ()), most))

    def position(self, ticket: Ticket) -> int | None:
        """A ticket's place in its model's line, from 1; None: it does not wait."""
        tickets = self._waiting.get(ticket.query.model, ())
        return next((place for place, other in enumerate(tickets, start=1) if other is ticket), None)

    def blocks(self, ticket: Ticket) -> bool:
        """Whether somebody waits whom `ticket` must not overtake: one that wants the same host, or any as it does."""
        others = self._waiting.get(ticket.query.model, ())
        return any(other.pin == ticket.pin and not other.holding_out for other in others)

    def add(self, ticket: Ticket, *, again: bool = False) -> None:
        """Queue a ticket; one that was placed before and refused (`again`) keeps its turn among the others.

        Raises QueueFull; for one that keeps its turn only where nobody may wait at all.
        """
        model = ticket.query.model
        if self.length(model) >= self._bound and not (again and self._bound):
            raise QueueFull(f"queue for {model} is full", retry_after=2)
        tickets = self._waiting.setdefault(model, deque())
        # All have the same time to wait, so who came earlier has the earlier deadline.
        place = sum(other.deadline <= ticket.deadline for other in tickets) if again else len(tickets)
        tickets.insert(place, ticket)

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

        A ticket without a place ends it for those behind it with the same pin, or none as it has: nobody overtakes.
        Tickets of different pins want different hosts and do not hold each other up; nor does one that holds out.
        """
        placed: list[tuple[Ticket, Placement]] = []
        stuck: set[str | None] = set()
        for ticket in tuple(self._waiting.get(model, ())):
            if ticket.pin in stuck:
                continue
            placement = place(ticket)
            if placement is not None:
                placed.append((ticket, placement))
            elif not ticket.holding_out:
                stuck.add(ticket.pin)
        self._drop(ticket for ticket, _ in placed)
        return placed

    def expire(self, now: float) -> list[Ticket]:
        """Take out and return the tickets whose deadline has passed."""
        late = [ticket for tickets in self._waiting.values() for ticket in tickets if ticket.deadline <= now]
        self._drop(late)
        return late

    def take(self, model: str, lost: Callable[[Ticket], Lost | None]) -> list[tuple[Ticket, Lost]]:
        """Take out and return the tickets of a model that are `lost`, each with the reason."""
        judged = [(ticket, lost(ticket)) for ticket in self._waiting.get(model, ())]
        gone = [(ticket, reason) for ticket, reason in judged if reason is not None]
        self._drop(ticket for ticket, _ in gone)
        return gone

    def next_deadline(self) -> float | None:
        """The earliest deadline of all; None: nobody waits."""
        return min((ticket.deadline for tickets in self._waiting.values() for ticket in tickets), default=None)

    def _drop(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tuple(tickets):
            self.remove(ticket)
