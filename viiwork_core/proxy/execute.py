"""The executing node's path, the same for local and forwarded turns: import, send, stream, save, release."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from typing import Any

import aiohttp

from viiwork_core.clock import Clock
from viiwork_core.contracts.engine import Wire
from viiwork_core.contracts.policy import Query, Score
from viiwork_core.engines.slots import Reservation, SlotBook, SlotState
from viiwork_core.errors import AnswerCut, BackendFailed, InvalidRequest, NoFreeSlot, NotFound, ViiworkError
from viiwork_core.kvshare.caches import Caches
from viiwork_core.kvshare.turns import Turn, Usage
from viiwork_core.observe.traces import Trace
from viiwork_core.proxy.body import Body
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.headers import outgoing
from viiwork_core.proxy.patience import Patience, patience_for, wore_out
from viiwork_core.proxy.relay import asks_usage, relay
from viiwork_core.proxy.request import InferenceRequest
from viiwork_core.proxy.upstream import Upstream

REFUSALS = (429, 503)
"""An engine's or a peer's way to say "not now": another route may have room."""

MISSENT = dict.fromkeys((301, 302, 303, 307, 308), "it is somewhere else") | {401: "it does not know this node's key"}
"""An engine's answers that say that its address or key is wrong. A redirect is not followed: a client who did would ask
a machine that it knows nothing of, and a 401 may quote the key."""

ASK_AFTER_S = (0.0, 0.05, 0.25)
"""After so many seconds a backend is asked whether it is done with what was aborted there. Some take a moment to
notice, and their slot should not have to wait for the regular question, a second later."""

ASK_SILENT_AFTER_S = (1.1,)
"""The same where no byte of the answer had come. llama-server looks for its client after a second without anything
else to do, and each question puts that off."""

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
        first_byte_timeout: Callable[[str], float | None] = lambda _: None,
        score: Callable[[str], Score | None] = lambda _: None,
    ) -> None:
        """`first_byte_timeout`: of a model, in seconds, where its configuration says one. `score`: a model's, as
        measured here."""
        self._node = node
        self._book = book
        self._wires = wires
        self._upstream = upstream
        self._caches = caches
        self._clock = clock
        self._spawn = spawn
        self._released = released
        self._poke = poke
        self._first_byte_timeout = first_byte_timeout
        self._score = score
        self._after_turns: dict[tuple[str, str], Turn] = {}
        """By model and session, the turns whose caches are being saved."""

    async def run(self, exchange: Exchange, reservation: Reservation) -> None:
        """Serve a request on its reservation, all but the answer's end, and release it, whatever happens.

        Raises BackendFailed, NoFreeSlot (the engine refused) or NotFound (the engine has no such path) before the
        first byte, AnswerCut after it.
        """
        exchange.placed(self._clock.monotonic(), backend=reservation.backend)
        if not self._wires[reservation.model].drain_on_abort:
            await self._run(exchange, reservation)
            return
        work = asyncio.ensure_future(self._run(exchange, reservation))
        try:
            await asyncio.shield(work)
        except asyncio.CancelledError:
            exchange.abandoned = True
            self._spawn(_drained(work))
            raise

    async def _run(self, exchange: Exchange, reservation: Reservation) -> None:
        turn = self._turn(exchange.request, reservation)
        try:
            await self._serve(exchange, reservation, turn)
        except BaseException as error:
            if isinstance(error, BackendFailed):
                self._book.doubt(reservation.backend)
            if self._is_to_blame(error, exchange, reservation):
                self._failed(exchange, reservation)
            # What was never sent leaves the slot as it was; of all else the engine must say when it is done with it.
            aborted = not isinstance(error, (NotFound, InvalidRequest))
            self._release(reservation, aborted=aborted, silent=_client_left(error) and exchange.first_byte_at is None)
            raise
        if exchange.is_failure:
            self._failed(exchange, reservation)
        elif exchange.first_byte_at is not None:
            self._book.served(reservation, answered_at=exchange.first_byte_at)
        if turn is None or exchange.status != 200:
            self._release(reservation)
        elif self._caches.shares:
            self._spawn(self._after(turn, exchange.usage, exchange.trace))
        else:
            # Nothing is saved, so nothing is waited for: without a task of its own, which takes 15 us.
            await self._after(turn, exchange.usage)

    def _is_to_blame(self, error: BaseException, exchange: Exchange, reservation: Reservation) -> bool:
        """Whether the backend has failed. A client that gave it up after a long silence has seen it fail too."""
        if isinstance(error, (BackendFailed, NoFreeSlot, AnswerCut)):
            return True
        if not _client_left(error) or not wore_out(
            exchange, self._patience(exchange, reservation), self._clock.monotonic()
        ):
            return False
        return exchange.request.stream or self._idles(reservation)

    def _patience(self, exchange: Exchange, reservation: Reservation) -> float:
        model, view = exchange.request.query.model, self._book.find(reservation.backend)
        side_by_side = 1 if view is None else max(1, view.slots)
        return patience_for(exchange.request, self._first_byte_timeout(model), self._score(model), side_by_side)

    def _idles(self, reservation: Reservation) -> bool:
        pinned = self._wires[reservation.model].slot_field is not None and reservation.slot is not None
        return self._book.idles(reservation, pinned=pinned)

    def _failed(self, exchange: Exchange, reservation: Reservation) -> None:
        silence = exchange.silence(self._clock.monotonic())
        self._book.failed(reservation, begun=exchange.granted_at, silence=silence)

    def _turn(self, request: InferenceRequest, reservation: Reservation) -> Turn | None:
        """The turn whose cache may move. A request over several slots has no one cache."""
        session = request.query.session
        if session is None or reservation.slot is None:
            return None
        return Turn(session, reservation, request.path, request.body.raw, request.query.begins, request.query.continues)

    async def _serve(self, exchange: Exchange, reservation: Reservation, turn: Turn | None) -> None:
        wire = self._wires[reservation.model]
        request = exchange.request
        if request.path not in wire.endpoints:
            raise NotFound(f"{request.path} is not served by the engine of {request.query.model}")
        headers, body = self._headers(request, wire), self._body(request, reservation, wire)
        if turn is not None:
            await self._caches.before(turn)
            if exchange.trace is not None and self._book.restoring(reservation):
                exchange.trace.did("import", exchange.granted_at, self._clock.monotonic())
            exchange.turn = self._caches.turn_of(turn.session) + 1
        self._caches.occupy(reservation, request.query.session)
        self._book.enter(reservation, SlotState.RUNNING)
        if exchange.trace is not None:
            headers = exchange.trace.calls("engine", reservation.backend, headers, self._clock.monotonic())
        sending = self._upstream.post(
            reservation.address, request.path, headers=headers, body=body, keep_alive=wire.keep_alive
        )
        exchange.asked_at = self._clock.monotonic()
        limit = self._patience(exchange, reservation)
        last = limit if request.stream else None
        with Patience(exchange, limit, lambda: self._idles(reservation), last=last):
            async with sending as response:
                await self._answer(exchange, reservation, wire, response)

    async def _answer(
        self, exchange: Exchange, reservation: Reservation, wire: Wire, response: aiohttp.ClientResponse
    ) -> None:
        if response.status in REFUSALS:
            raise NoFreeSlot(f"the backend answered {response.status}")
        if response.status in MISSENT:
            raise BackendFailed(f"the backend answered {response.status}: {MISSENT[response.status]}")
        extra = {
            "X-Viiwork-Node": self._node,
            "X-Viiwork-Backend": reservation.backend,
            "X-Gpu-Backend": reservation.backend,
            "X-Viiwork-Model": reservation.model,
        }
        await relay(response, exchange, wire, self._clock, extra=extra)

    @staticmethod
    def _headers(request: InferenceRequest, wire: Wire) -> list[tuple[str, str]]:
        headers = outgoing(request.headers, without=wire.session_header)
        if wire.headers:
            own = {name.lower() for name, _ in wire.headers}
            headers = [pair for pair in headers if pair[0] not in own]
        headers += [("x-request-id", request.id), *wire.headers]
        if wire.session_header is not None and request.query.session is not None:
            headers.append((wire.session_header, request.query.session))
        return headers

    @staticmethod
    def _body(request: InferenceRequest, reservation: Reservation, wire: Wire) -> bytes:
        if wire.slot_field is None and wire.model is None and not asks_usage(request, wire):
            return request.body.raw
        body: Body = request.body.copy()
        if wire.slot_field is not None:
            body.drop(wire.slot_field)
            if reservation.slot is not None:
                body.set(wire.slot_field, reservation.slot)
        if wire.model is not None:
            body.set("model", wire.model)
        if asks_usage(request, wire):
            options = body.get("stream_options")
            body.set("stream_options", {**(options if isinstance(options, dict) else {}), "include_usage": True})
        return body.edited()

    async def _after(self, turn: Turn, usage: Usage, trace: Trace | None = None) -> None:
        """The rest of a turn, when the client has its answer already."""
        key = turn.reservation.model, turn.session
        self._after_turns[key] = turn
        began = self._clock.monotonic()
        try:
            await self._caches.after(turn, usage)
            if trace is not None and self._book.saving(turn.reservation):
                trace.did("save", began, self._clock.monotonic())
        finally:
            if self._after_turns.get(key) is turn:
                del self._after_turns[key]
            self._release(turn.reservation)

    def overtake(self, query: Query) -> None:
        """A session's next turn is here: if the cache of the last one is still being saved, that comes to nothing.

        The engine finishes what it does and then serves the turn, in the slot that holds its cache.
        """
        turn = self._after_turns.pop((query.model, query.session), None) if query.session is not None else None
        if turn is not None:
            self._caches.overtaken(turn)
            self._release(turn.reservation)

    def _release(self, reservation: Reservation, *, aborted: bool = False, silent: bool = False) -> None:
        self._book.release(reservation, aborted=aborted)
        delays = ASK_SILENT_AFTER_S if silent else ASK_AFTER_S
        for delay in delays if aborted else ():
            asyncio.get_running_loop().call_later(delay, self._poke, reservation.backend)
        self._released()


def _client_left(error: BaseException) -> bool:
    return isinstance(error, asyncio.CancelledError)


async def _drained(work: asyncio.Future[None]) -> None:
    """Wait for work that nobody waits for any more, and whose failures nobody has to hear of."""
    try:
        with suppress(ViiworkError):
            await work
    finally:
        work.cancel()
