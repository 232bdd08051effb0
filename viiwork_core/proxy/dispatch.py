"""The router's driver on the data loop: turns its answers into waiting and waking."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from viiwork_core.clock import Clock
from viiwork_core.errors import NoFreeSlot
from viiwork_core.routing.router import Router
from viiwork_core.routing.ticket import Placement, Ticket

TICK = 0.25
"""Seconds after which whoever waits is looked at again, whatever has or has not been heard: some room comes by time."""

REPEAT = 5.0
"""Seconds after which a client is told its place in line again, even if it has not changed."""

GiveBack = Callable[[Placement], None]
"""Takes back a placement that nobody will use."""

TellPlace = Callable[[int], Awaitable[None]]
"""Tells a client its place in line, from 1."""


class Dispatcher:
    """Waits for the router on behalf of requests. All calls on the data loop."""

    def __init__(self, router: Router, clock: Clock, *, queue_timeout: float) -> None:
        self._router = router
        self._clock = clock
        self._queue_timeout = queue_timeout
        self._waiting: dict[Ticket, asyncio.Future[Placement]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(
        self, ticket: Ticket, give_back: GiveBack, *, again: bool = False, tell: TellPlace | None = None
    ) -> Placement:
        """A place for the ticket, now or when one comes free before its deadline. `tell` hears of the wait.

        Raises NotFound, ModelNotServed, QueueFull, or NoFreeSlot when the time is up. A placement that arrives for a
        client who has just left goes to `give_back`.
        """
        placement = self._router.offer(ticket, self._clock.monotonic(), again=again)
        if placement is not None:
            return placement
        began = self._clock.monotonic()
        future: asyncio.Future[Placement] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        self._arm()
        try:
            if tell is not None:
                await self._tell(ticket, future, tell)
            return await future
        except BaseException:
            self._withdraw(ticket)
            if future.done() and not future.cancelled() and future.exception() is None:
                give_back(future.result())
            # Whom this one held up may go now.
            self.wake()
            raise
        finally:
            ticket.waited += self._clock.monotonic() - began
            self._withdraw(ticket)

    async def _tell(self, ticket: Ticket, future: asyncio.Future[Placement], tell: TellPlace) -> None:
        """Until the wait is over: the place in line at once, when it changes, and each REPEAT seconds."""
        told, due = 0, 0.0
        while not future.done():
            place, now = self._router.position(ticket), self._clock.monotonic()
            if place is not None and (place != told or now >= due):
                told, due = place, now + REPEAT
                await tell(place)
            await asyncio.wait((future,), timeout=TICK)

    def _withdraw(self, ticket: Ticket) -> None:
        self._waiting.pop(ticket, None)
        self._router.withdraw(ticket)

    def wake(self) -> None:
        """Something was released, reported or lost: see who can go."""
        if not self._waiting:
            return
        self._forget_gone()
        for ticket, placement in self._router.settle(self._clock.monotonic()):
            self._waiting[ticket].set_result(placement)
        for ticket, error in self._router.lost():
            self._waiting[ticket].set_exception(error)

    def _forget_gone(self) -> None:
        """Take out whose client has just left: the wait is cancelled, and its task has not run since."""
        for ticket, future in self._waiting.items():
            if future.cancelled():
                self._router.withdraw(ticket)

    def _arm(self) -> None:
        """Look at the next deadline, and within a TICK in any case. A timer that is due before then stays as it is:
        were it started afresh, whoever comes would put off the look for all others."""
        deadline = self._router.next_deadline()
        if deadline is None:
            return
        loop = asyncio.get_running_loop()
        due = loop.time() + min(TICK, max(0.0, deadline - self._clock.monotonic()))
        if self._timer is not None:
            if self._timer.when() <= due:
                return
            self._timer.cancel()
        self._timer = loop.call_at(due, self.look)

    def look(self) -> None:
        """Grant what can be granted, and end the waiting of those whose time is up."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.wake()
        late = self._router.expire(self._clock.monotonic())
        for ticket in late:
            what = f"no free slot for {ticket.query.model} within {self._queue_timeout:g}s"
            again = self._router.retry_after(ticket, self._clock.monotonic())
            self._waiting[ticket].set_exception(NoFreeSlot(what, retry_after=again))
        if late:
            self.wake()
        self._arm()
