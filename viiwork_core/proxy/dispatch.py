"""The router's driver on the data loop: turns its answers into waiting and waking."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from viiwork_core.clock import Clock
from viiwork_core.errors import NoFreeSlot
from viiwork_core.routing.router import Router
from viiwork_core.routing.ticket import Placement, Ticket

GiveBack = Callable[[Placement], None]
"""Takes back a placement that nobody will use."""


class Dispatcher:
    """Waits for the router on behalf of requests. All calls on the data loop."""

    def __init__(self, router: Router, clock: Clock, *, queue_timeout: float) -> None:
        self._router = router
        self._clock = clock
        self._queue_timeout = queue_timeout
        self._waiting: dict[Ticket, asyncio.Future[Placement]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def acquire(self, ticket: Ticket, give_back: GiveBack, *, again: bool = False) -> Placement:
        """A place for the ticket, now or when one comes free before its deadline.

        Raises NotFound, QueueFull, or NoFreeSlot when the time is up. A placement that arrives for a client who has
        just left goes to `give_back`.
        """
        placement = self._router.offer(ticket, self._clock.monotonic(), again=again)
        if placement is not None:
            return placement
        future: asyncio.Future[Placement] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = future
        self._arm()
        try:
            return await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled() and future.exception() is None:
                give_back(future.result())
            raise
        finally:
            self._waiting.pop(ticket, None)
            self._router.withdraw(ticket)

    def wake(self) -> None:
        """Something was released, reported or lost: see who can go."""
        if not self._waiting:
            return
        for ticket, placement in self._router.settle(self._clock.monotonic()):
            self._waiting[ticket].set_result(placement)
        for ticket, error in self._router.lost():
            self._waiting[ticket].set_exception(error)

    def _arm(self) -> None:
        deadline = self._router.next_deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if deadline is not None:
            delay = max(0.0, deadline - self._clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._expire)

    def _expire(self) -> None:
        for ticket in self._router.expire(self._clock.monotonic()):
            model, limit = ticket.query.model, f"{self._queue_timeout:g}s"
            self._waiting[ticket].set_exception(NoFreeSlot(f"no free slot for {model} within {limit}", retry_after=2))
        self._arm()
