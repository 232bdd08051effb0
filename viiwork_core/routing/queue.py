"""The entry node's queue: fair between keys, first in, first out within one, bounded, one deadline a request. Pure.

Each model has a line, and in it each key a flow. The lines are served by start-time fair queueing (Goyal, Vin and
Cheng, 1996): a flow's tag grows by a ticket's slots over the key's weight each time that one of its tickets is placed,
and the flow with the smallest tag is next. One that comes begins at the tag that was served last, so that nobody saves
up turns while away. Without keys there is one flow, which is a plain queue.

Of n tickets of k keys: adding one costs O(log n), taking one out O(1), the next deadline O(log n). Settling looks at
all k flows once, and then costs O(log k) for each ticket that it places.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush, heapreplace
from itertools import islice
from typing import TypeVar

from viiwork_core.errors import QueueFull
from viiwork_core.routing.ticket import Placement, Ticket

Lost = TypeVar("Lost")

RETRY_S = 2


@dataclass(slots=True, eq=False)
class _Flow:
    """One key's tickets for one model."""

    tag: float
    """Slots that were placed, over the key's weight, counted from the line's tag when this flow began."""

    tickets: dict[Ticket, None] = field(default_factory=dict)
    """In order: a dict takes one out of the middle at once."""

    slots: int = 0
    """That all of them want."""

    def insert(self, ticket: Ticket) -> None:
        """Put one that keeps its turn among the others: all may wait equally long, so who came earlier has the earlier
        deadline."""
        others = list(self.tickets)
        place = sum(other.deadline <= ticket.deadline for other in others)
        self.tickets = dict.fromkeys((*others[:place], ticket, *others[place:]))


class _Line:
    """All that wait for one model."""

    def __init__(self) -> None:
        self.flows: dict[str, _Flow] = {}
        self.length = 0
        self.pins: Counter[str | None] = Counter()
        self._tag = 0.0
        """That of the ticket that was placed last."""

    def add(self, ticket: Ticket, *, again: bool) -> None:
        flow = self.flows.get(ticket.key)
        if flow is None:
            flow = self.flows[ticket.key] = _Flow(self._tag)
        if again:
            flow.insert(ticket)
        else:
            flow.tickets[ticket] = None
        flow.slots += ticket.weight
        self.length += 1
        self.pins[ticket.pin] += 1

    def remove(self, ticket: Ticket) -> bool:
        """Whether it was there."""
        flow = self.flows.get(ticket.key)
        if flow is None or ticket not in flow.tickets:
            return False
        del flow.tickets[ticket]
        flow.slots -= ticket.weight
        self.length -= 1
        self.pins[ticket.pin] -= 1
        if not self.pins[ticket.pin]:
            del self.pins[ticket.pin]
        # A flow that is ahead stays: else a key could reset its tag by letting its line run empty for a moment.
        if not flow.tickets and flow.tag <= self._tag:
            del self.flows[ticket.key]
        return True

    def placed(self, ticket: Ticket) -> None:
        """One of them is placed, and leaves the line."""
        flow = self.flows[ticket.key]
        self._tag = max(self._tag, flow.tag)
        flow.tag = max(flow.tag, self._tag) + ticket.weight / ticket.share
        self.remove(ticket)

    def tidy(self) -> None:
        """Forget the flows that are empty and no longer ahead."""
        if len(self.flows) > 1:
            idle = [key for key, flow in self.flows.items() if not flow.tickets and flow.tag <= self._tag]
            for key in idle:
                del self.flows[key]

    def __iter__(self) -> Iterator[Ticket]:
        """In the order in which they will be placed, if nobody else comes."""
        waiting = [flow for flow in self.flows.values() if flow.tickets]
        if len(waiting) == 1:
            yield from tuple(waiting[0].tickets)
            return
        # Of equal tags the earlier one goes first; the number tells flows apart where that is equal, too.
        heads: list[tuple[float, float, int]] = []
        rest: list[Iterator[Ticket]] = []
        now: list[Ticket] = []
        for number, flow in enumerate(waiting):
            rest.append(iter(tuple(flow.tickets)))
            now.append(next(rest[number]))
            heads.append((max(flow.tag, self._tag), now[number].deadline, number))
        heapify(heads)
        while heads:
            tag, _, number = heads[0]
            ticket = now[number]
            yield ticket
            following = next(rest[number], None)
            if following is None:
                heappop(heads)
                continue
            now[number] = following
            heapreplace(heads, (tag + ticket.weight / ticket.share, following.deadline, number))

    def greediest(self, ticket: Ticket) -> Ticket | None:
        """The last ticket of the flow that is furthest over its share, if that is more than `ticket`'s would be."""
        own = self.flows.get(ticket.key)
        wanted = ((own.slots if own else 0) + ticket.weight) / ticket.share
        most, last = wanted, None
        for flow in self.flows.values():
            end = next(reversed(flow.tickets), None)
            if end is not None and flow is not own and (asked := flow.slots / end.share) > most:
                most, last = asked, end
        return last


class Queue:
    """Tickets that wait for room."""

    def __init__(self, bound: int) -> None:
        """`bound`: how many may wait for one model, those of all keys together."""
        self._bound = bound
        self._lines: dict[str, _Line] = {}
        self._length = 0
        self._deadlines: list[tuple[float, int, Ticket]] = []
        """A heap, in which those that wait no longer remain until they are first, or too many."""

        self._number = 0
        self._ousted: list[tuple[Ticket, QueueFull]] = []

    def __len__(self) -> int:
        return self._length

    def models(self) -> tuple[str, ...]:
        """The models that somebody waits for."""
        return tuple(self._lines)

    def length(self, model: str) -> int:
        """How many wait for `model`."""
        line = self._lines.get(model)
        return 0 if line is None else line.length

    def tickets(self, model: str, most: int) -> list[Ticket]:
        """The first `most` that wait for `model`, in order."""
        return list(islice(self._lines.get(model, ()), most))

    def position(self, ticket: Ticket) -> int | None:
        """A ticket's place in its model's line, from 1; None: it does not wait."""
        line = self._lines.get(ticket.query.model, ())
        return next((place for place, other in enumerate(line, start=1) if other is ticket), None)

    def blocks(self, ticket: Ticket) -> bool:
        """Whether somebody waits whom `ticket` must not overtake: one that wants the same host, or any as it does."""
        line = self._lines.get(ticket.query.model)
        if line is None or ticket.pin not in line.pins:
            return False
        flows = line.flows.values()
        return any(other.pin == ticket.pin and not other.holding_out for flow in flows for other in flow.tickets)

    def add(self, ticket: Ticket, *, again: bool = False) -> None:
        """Queue a ticket; one that was placed before and refused (`again`) keeps its turn among the others of its key.

        Where the line is full, the last ticket of the key that is furthest over its share gives way (`ousted`), if that
        is not this one's. Raises QueueFull; for one that keeps its turn only where nobody may wait at all.
        """
        model = ticket.query.model
        if self.length(model) >= self._bound and not (again and self._bound):
            self._make_room(ticket)
        self._lines.setdefault(model, _Line()).add(ticket, again=again)
        self._length += 1
        self._number += 1
        heappush(self._deadlines, (ticket.deadline, self._number, ticket))
        if len(self._deadlines) > 2 * self._length + 64:
            self._deadlines = [one for one in self._deadlines if self._waits(one[2])]
            heapify(self._deadlines)

    def _make_room(self, ticket: Ticket) -> None:
        model = ticket.query.model
        line = self._lines.get(model)
        last = line.greediest(ticket) if line is not None else None
        if last is None:
            raise QueueFull(f"queue for {model} is full", retry_after=RETRY_S)
        self.remove(last)
        what = f"queue for {model} is full, and other keys have fewer requests in it"
        self._ousted.append((last, QueueFull(what, retry_after=RETRY_S)))

    def ousted(self) -> list[tuple[Ticket, QueueFull]]:
        """The tickets that have given way since this was asked last; they wait no longer."""
        ousted, self._ousted = self._ousted, []
        return ousted

    def _waits(self, ticket: Ticket) -> bool:
        line = self._lines.get(ticket.query.model)
        flow = None if line is None else line.flows.get(ticket.key)
        return flow is not None and ticket in flow.tickets

    def remove(self, ticket: Ticket) -> None:
        """Forget a ticket; no matter if it does not wait."""
        line = self._lines.get(ticket.query.model)
        if line is not None and line.remove(ticket):
            self._left(ticket.query.model, line)
        elif self._ousted:
            self._ousted = [one for one in self._ousted if one[0] is not ticket]

    def _left(self, model: str, line: _Line) -> None:
        self._length -= 1
        if not line.length:
            del self._lines[model]

    def settle(self, model: str, place: Callable[[Ticket], Placement | None]) -> list[tuple[Ticket, Placement]]:
        """Place whoever can be placed, in order.

        A ticket without a place ends it for those behind it with the same pin, or none as it has: nobody overtakes.
        Tickets of different pins want different hosts and do not hold each other up; nor does one that holds out.
        """
        line = self._lines.get(model)
        if line is None:
            return []
        placed: list[tuple[Ticket, Placement]] = []
        stuck: set[str | None] = set()
        # The order is that of a moment ago: it says who is next as long as those before it are placed.
        for ticket in line:
            if ticket.pin in stuck:
                continue
            placement = place(ticket)
            if placement is not None:
                placed.append((ticket, placement))
            elif not ticket.holding_out:
                stuck.add(ticket.pin)
                if len(stuck) == len(line.pins):
                    break
        for ticket, _ in placed:
            line.placed(ticket)
            self._left(model, line)
        line.tidy()
        return placed

    def expire(self, now: float) -> list[Ticket]:
        """Take out and return the tickets whose deadline has passed."""
        late = []
        while (deadline := self.next_deadline()) is not None and deadline <= now:
            late.append(heappop(self._deadlines)[2])
            self.remove(late[-1])
        return late

    def take(self, model: str, lost: Callable[[Ticket], Lost | None]) -> list[tuple[Ticket, Lost]]:
        """Take out and return the tickets of a model that are `lost`, each with the reason."""
        judged = [(ticket, lost(ticket)) for ticket in self._lines.get(model, ())]
        gone = [(ticket, reason) for ticket, reason in judged if reason is not None]
        self._drop(ticket for ticket, _ in gone)
        return gone

    def next_deadline(self) -> float | None:
        """The earliest deadline of all; None: nobody waits."""
        while self._deadlines and not self._waits(self._deadlines[0][2]):
            heappop(self._deadlines)
        return self._deadlines[0][0] if self._deadlines else None

    def _drop(self, tickets: Iterable[Ticket]) -> None:
        for ticket in tuple(tickets):
            self.remove(ticket)
