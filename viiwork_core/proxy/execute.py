"""The executing node's path, the same for local and forwarded turns: import, send, stream, save, release."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

import aiohttp

from viiwork_core.clock import Clock
from viiwork_core.contracts.engine import UsageSource, Wire
from viiwork_core.engines.slots import Reservation, SlotBook, SlotState
from viiwork_core.errors import AnswerCut, BackendFailed, NoFreeSlot, NotFound
from viiwork_core.kvshare.caches import Caches
from viiwork_core.kvshare.turns import Turn, Usage
from viiwork_core.proxy.body import Body
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.headers import outgoing
from viiwork_core.proxy.relay import relay
from viiwork_core.proxy.request import InferenceRequest
from viiwork_core.proxy.upstream import Upstream

REFUSALS = (429, 503)
"""An engine's or a peer's way to say "not now": another route may have room."""


Spawn = Callable[[Coroutine[Any, Any, None]], object]
"""Starts background work that outlives the request."""


class Executor:
    """Runs requests on reserved slots. On the data loop."""

    def __init__(
        self,
        *,
        node: str,
        book: SlotBook,
        wires: Mapping[str, Wire],
        upstream: Upstream,
        caches: Caches,
        clock: Clock,
        spawn: Spawn,
        released: Callable[[], None],
        poke: Callable[[str], None],
    ) -> None:
        self._node = node
        self._book = book
        self._wires = wires
        self._upstream = upstream
        self._caches = caches
        self._clock = clock
        self._spawn = spawn
        self._released = released
        self._poke = poke

    async def run(self, exchange: Exchange, reservation: Reservation) -> None:
        """Serve a request on its reservation and release it, whatever happens.

        Raises BackendFailed, NoFreeSlot (the engine refused) or NotFound (the engine has no such path) before the
        first byte, AnswerCut after it.
        """
        exchange.backend = reservation.backend
        turn = self._turn(exchange.request, reservation)
        try:
            await self._serve(exchange, reservation, turn)
        except BaseException as error:
            self._release(reservation, aborted=isinstance(error, (asyncio.CancelledError, AnswerCut)))
            if isinstance(error, (BackendFailed, AnswerCut)):
                self._poke(reservation.backend)
            raise
        if turn is not None and exchange.status == 200:
            self._spawn(self._after(turn, exchange.usage))
        else:
            self._release(reservation)

    def _turn(self, request: InferenceRequest, reservation: Reservation) -> Turn | None:
        """The turn whose cache may move. A request over several slots has no one cache."""
        session = request.query.session
        if session is None or reservation.slot is None:
            return None
        return Turn(session, reservation, request.path, request.body.raw)

    async def _serve(self, exchange: Exchange, reservation: Reservation, turn: Turn | None) -> None:
        wire = self._wires[reservation.model]
        request = exchange.request
        if request.path not in wire.endpoints:
            raise NotFound(f"{request.path} is not served by the engine of {request.query.model}")
        if turn is not None:
            await self._caches.before(turn)
        self._caches.occupy(reservation, request.query.session)
        self._book.enter(reservation, SlotState.RUNNING)
        sending = self._upstream.post(
            reservation.address,
            request.path,
            headers=self._headers(request, wire),
            body=self._body(request, reservation, wire),
            keep_alive=wire.keep_alive,
        )
        async with sending as response:
            await self._answer(exchange, reservation, wire, response)

    async def _answer(
        self, exchange: Exchange, reservation: Reservation, wire: Wire, response: aiohttp.ClientResponse
    ) -> None:
        if response.status in REFUSALS:
            raise NoFreeSlot(f"the backend answered {response.status}")
        extra = {
            "X-Viiwork-Node": self._node,
            "X-Viiwork-Backend": reservation.backend,
            "X-Gpu-Backend": reservation.backend,
            "X-Viiwork-Model": reservation.model,
        }
        await exchange.begin(response.status, response.raw_headers, from_peer=False, extra=extra)
        await relay(response, exchange, wire, self._clock)

    @staticmethod
    def _headers(request: InferenceRequest, wire: Wire) -> list[tuple[str, str]]:
        headers = [*outgoing(request.headers), ("x-request-id", request.id)]
        if wire.session_header is not None and request.query.session is not None:
            headers.append((wire.session_header, request.query.session))
        return headers

    @staticmethod
    def _body(request: InferenceRequest, reservation: Reservation, wire: Wire) -> bytes:
        body: Body = request.body.copy()
        if wire.slot_field is not None:
            body.drop(wire.slot_field)
            if reservation.slot is not None:
                body.set(wire.slot_field, reservation.slot)
        if wire.usage is UsageSource.INCLUDE_USAGE and request.stream and not request.wants_usage:
            options = body.get("stream_options")
            body.set("stream_options", {**(options if isinstance(options, dict) else {}), "include_usage": True})
        return body.edited()

    async def _after(self, turn: Turn, usage: Usage) -> None:
        """The rest of a turn, when the client has its answer already."""
        try:
            await self._caches.after(turn, usage)
        finally:
            self._release(turn.reservation)

    def _release(self, reservation: Reservation, *, aborted: bool = False) -> None:
        self._book.release(reservation, aborted=aborted)
        if aborted:
            self._poke(reservation.backend)
        self._released()
