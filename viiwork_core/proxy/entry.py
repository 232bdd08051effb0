"""From a request to its answer: the attempt loop of the entry node, and the strict receiver of a forward."""

from __future__ import annotations

import asyncio

from viiwork_core.clock import Clock
from viiwork_core.engines.slots import SlotBook
from viiwork_core.errors import (
    AnswerCut,
    BackendFailed,
    ModelNotServed,
    NoCapacity,
    NoFreeSlot,
    QueueFull,
    ViiworkError,
)
from viiwork_core.proxy.dispatch import Dispatcher
from viiwork_core.proxy.exchange import Exchange, Try
from viiwork_core.proxy.execute import Executor
from viiwork_core.proxy.forward import Forwarder
from viiwork_core.proxy.patience import Patience, patience_there, wore_out
from viiwork_core.routing.backends import LocalBackends
from viiwork_core.routing.router import Router
from viiwork_core.routing.ticket import PATIENCE, Here, Placement, There, Ticket

QUEUED = "X-Viiwork-Queued-Ms"

MARGIN = 5.0
"""Seconds beyond a peer's own patience, so that it may say that it has run out, and has tried all it could."""

IMPORT = 70.0
"""Seconds that a session's cache may take to be imported there, before the peer's patience begins."""


class Receiver:
    """Serves forwards: into a free slot or not at all. It never queues and never forwards again."""

    def __init__(self, *, local: LocalBackends, executor: Executor) -> None:
        self._local = local
        self._executor = executor

    async def serve(self, exchange: Exchange) -> None:
        """Raises ModelNotServed, NoFreeSlot, NotFound, or BackendFailed as the 503 that sends the origin elsewhere."""
        request = exchange.request
        model = request.query.model
        if self._local.room(model) is None or self._local.given_up(model) is not None:
            raise ModelNotServed(f"{model} is not served here", retry_after=1)
        self._executor.overtake(request.query)
        reservation = self._local.reserve(request.query, request.weight)
        if reservation is None:
            raise NoFreeSlot("no free slot")
        try:
            await self._executor.run(exchange, reservation)
        except BackendFailed as error:
            raise NoCapacity("backend failed before responding") from error
        await exchange.finish()


class Entry:
    """Serves what clients send to this node. On the data loop."""

    def __init__(
        self,
        *,
        router: Router,
        dispatcher: Dispatcher,
        book: SlotBook,
        executor: Executor,
        forwarder: Forwarder | None,
        clock: Clock,
        queue_timeout: float,
        forward_retry: int,
    ) -> None:
        self._router = router
        self._dispatcher = dispatcher
        self._book = book
        self._executor = executor
        self._forwarder = forwarder
        self._clock = clock
        self._queue_timeout = queue_timeout
        self._forward_retry = forward_retry

    async def serve(self, exchange: Exchange) -> None:
        """Try routes until one answers.

        After the first place, routing.forward_retry more are taken from what is free now; then one last place may be
        waited for with what is left of the time. Raises what the client gets, or AnswerCut after the first byte.
        """
        ticket = exchange.ticket = self._ticket(exchange)
        errors: list[ViiworkError] = []
        if self._router.may_stay(ticket):
            self._executor.overtake(ticket.query)
        placement: Placement | None = await self._acquire(ticket, exchange)
        retries = self._forward_retry
        while placement is not None:
            if await self._served(exchange, placement, errors):
                return
            ticket.tried.add(placement.name)
            placement = self._router.pick(ticket, self._clock.monotonic()) if retries else None
            retries -= 1
        if await self._served(exchange, await self._last(ticket, exchange, errors), errors):
            return
        raise self._summary(errors, ticket)

    async def _served(self, exchange: Exchange, placement: Placement, errors: list[ViiworkError]) -> bool:
        """Whether the place answered. What may go elsewhere is added to `errors`; all else is raised."""
        try:
            await self._attempt(exchange, placement)
        except ViiworkError as error:
            if exchange.started or error.retry != "elsewhere":
                raise
            errors.append(error)
            place, took = exchange.place or placement.name, self._clock.monotonic() - exchange.granted_at
            exchange.tries.append(Try(place, took, error.message))
            if exchange.trace is not None:
                exchange.trace.failed(error.code, self._clock.monotonic())
            return False
        await exchange.finish()
        return True

    async def _last(self, ticket: Ticket, exchange: Exchange, errors: list[ViiworkError]) -> Placement:
        """A place for the last try, also one that was tried before."""
        ticket.tried.clear()
        try:
            return await self._acquire(ticket, exchange, again=True)
        except (NoFreeSlot, QueueFull):
            # That no room came is no news to a client whom something failed before.
            if not all(_is_refusal(error) for error in errors):
                raise self._summary(errors, ticket) from None
            raise

    def _summary(self, errors: list[ViiworkError], ticket: Ticket) -> ViiworkError:
        """What to tell a client whom no route could serve: refusals for want of room are not failures."""
        if all(_is_refusal(error) for error in errors):
            again = self._router.retry_after(ticket, self._clock.monotonic())
            return NoCapacity("no route has capacity", retry_after=again)
        reasons = "; ".join(dict.fromkeys(error.message for error in errors))
        return BackendFailed(f"no route could serve the request: {reasons}")

    def _ticket(self, exchange: Exchange) -> Ticket:
        request = exchange.request
        deadline = self._clock.monotonic() + self._queue_timeout
        return Ticket(
            query=request.query,
            weight=request.weight,
            deadline=deadline,
            pin=request.pin,
            prefer=request.prefer,
            request=request.id,
            key=request.key,
            share=request.share,
            patient_until=deadline - (1 - PATIENCE) * self._queue_timeout,
        )

    async def _acquire(self, ticket: Ticket, exchange: Exchange, *, again: bool = False) -> Placement:
        try:
            tell = exchange.tell_place if exchange.tells_place else None
            return await self._dispatcher.acquire(ticket, self._give_back, again=again, tell=tell)
        finally:
            exchange.queued_s = ticket.waited
            exchange.extra[QUEUED] = str(round(exchange.queued_s * 1000))

    def _give_back(self, placement: Placement) -> None:
        if isinstance(placement, Here):
            self._book.release(placement.reservation)
        else:
            self._router.returned(placement)
        self._dispatcher.wake()

    async def _attempt(self, exchange: Exchange, placement: Placement) -> None:
        if isinstance(placement, Here):
            await self._executor.run(exchange, placement.reservation)
            return
        assert self._forwarder is not None, "a node without a mesh has no peers to place on"
        try:
            await self._forwarded(exchange, placement, self._forwarder)
        finally:
            self._router.returned(placement)
            self._dispatcher.wake()

    async def _forwarded(self, exchange: Exchange, placement: There, forwarder: Forwarder) -> None:
        request = exchange.request
        limit = patience_there(request, self._router.about(placement))
        last = limit + (IMPORT if request.query.session else MARGIN) if request.stream else None
        exchange.placed(self._clock.monotonic(), peer=placement.member.node)
        exchange.asked_at = exchange.granted_at
        try:
            gone = Death(self._router, placement, self._clock).has_come
            with Patience(exchange, limit, lambda: self._is_lost(placement), last=last, gone=gone):
                await forwarder.run(exchange, placement.member)
        except (ViiworkError, asyncio.CancelledError) as error:
            gave_up = request.stream and wore_out(exchange, limit, self._clock.monotonic())
            if gave_up if isinstance(error, asyncio.CancelledError) else _is_failure(error):
                self._refused(exchange, placement)
            raise
        if exchange.is_failure:
            self._refused(exchange, placement)
        elif exchange.first_byte_at is not None:
            self._router.served(placement, exchange.first_byte_at)

    def _is_lost(self, placement: There) -> bool:
        return not self._router.hears(placement, self._clock.monotonic())

    def _refused(self, exchange: Exchange, placement: There) -> None:
        now = self._clock.monotonic()
        self._router.refused(placement, now, silence=exchange.silence(now))


class Death:
    """Tells whether the member that a forward went to has died.

    One that leaves in order is no member any more either, but finishes its work first. So only a member that was silent
    before it was gone counts as dead.
    """

    def __init__(self, router: Router, placement: There, clock: Clock) -> None:
        self._router = router
        self._placement = placement
        self._clock = clock
        self._silent = False

    def has_come(self) -> bool:
        """Whether it has died. Must be asked again and again: it notes silences as they pass."""
        there = self._router.about(self._placement) is not None
        if there:
            self._silent = not self._router.hears(self._placement, self._clock.monotonic())
        return not there and self._silent


def _is_failure(error: ViiworkError) -> bool:
    """Whether an error says that another host should be asked next time."""
    return error.retry == "elsewhere" or isinstance(error, AnswerCut)


def _is_refusal(error: ViiworkError) -> bool:
    return isinstance(error, (NoFreeSlot, NoCapacity, ModelNotServed))
