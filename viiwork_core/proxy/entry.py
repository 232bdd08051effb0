"""From a request to its answer: the attempt loop of the entry node, and the strict receiver of a forward."""

from __future__ import annotations

from viiwork_core.clock import Clock
from viiwork_core.engines.slots import SlotBook
from viiwork_core.errors import BackendFailed, ModelNotServed, NoCapacity, NoFreeSlot, QueueFull, ViiworkError
from viiwork_core.proxy.dispatch import Dispatcher
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.execute import Executor
from viiwork_core.proxy.forward import Forwarder
from viiwork_core.routing.backends import LocalBackends
from viiwork_core.routing.router import Router
from viiwork_core.routing.ticket import Here, Placement, Ticket


class Receiver:
    """Serves forwards: into a free slot or not at all. It never queues and never forwards again."""

    def __init__(self, *, local: LocalBackends, executor: Executor) -> None:
        self._local = local
        self._executor = executor

    async def serve(self, exchange: Exchange) -> None:
        """Raises ModelNotServed, NoFreeSlot, NotFound, or BackendFailed as the 503 that sends the origin elsewhere."""
        request = exchange.request
        model = request.query.model
        if self._local.room(model) is None:
            raise ModelNotServed(f"{model} is not served here", retry_after=1)
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
        ticket = self._ticket(exchange)
        errors: list[ViiworkError] = []
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
        raise _summary(errors)

    async def _served(self, exchange: Exchange, placement: Placement, errors: list[ViiworkError]) -> bool:
        """Whether the place answered. What may go elsewhere is added to `errors`; all else is raised."""
        try:
            await self._attempt(exchange, placement)
        except ViiworkError as error:
            if exchange.started or error.retry != "elsewhere":
                raise
            errors.append(error)
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
                raise _summary(errors) from None
            raise

    def _ticket(self, exchange: Exchange) -> Ticket:
        request = exchange.request
        deadline = self._clock.monotonic() + self._queue_timeout
        return Ticket(query=request.query, weight=request.weight, deadline=deadline, pin=request.pin)

    async def _acquire(self, ticket: Ticket, exchange: Exchange, *, again: bool = False) -> Placement:
        try:
            tell = exchange.tell_place if exchange.tells_place else None
            return await self._dispatcher.acquire(ticket, self._give_back, again=again, tell=tell)
        finally:
            exchange.queued_s = ticket.waited
            exchange.extra["X-Viiwork-Queued-Ms"] = str(round(exchange.queued_s * 1000))

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
            await self._forwarder.run(exchange, placement.member)
        except ViiworkError as error:
            if error.retry == "elsewhere":
                self._router.refused(placement, self._clock.monotonic())
            raise
        finally:
            self._router.returned(placement)
            self._dispatcher.wake()


def _is_refusal(error: ViiworkError) -> bool:
    return isinstance(error, (NoFreeSlot, NoCapacity, ModelNotServed))


def _summary(errors: list[ViiworkError]) -> ViiworkError:
    """What to tell a client whom no route could serve: refusals for want of room are not failures."""
    if all(_is_refusal(error) for error in errors):
        return NoCapacity("no route has capacity", retry_after=2)
    reasons = "; ".join(dict.fromkeys(error.message for error in errors))
    return BackendFailed(f"no route could serve the request: {reasons}")
