"""The raw ASGI handler of the inference paths: reads the request, watches the client, tells of the outcome."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

import anyio

from viiwork_core.clock import Clock
from viiwork_core.errors import ViiworkError
from viiwork_core.observe.events import EventLog
from viiwork_core.proxy.body import Body
from viiwork_core.proxy.budget import BodyBudget, Share
from viiwork_core.proxy.entry import Entry, Receiver
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.forward import SESSION, TURN
from viiwork_core.proxy.headers import first
from viiwork_core.proxy.request import (
    ClientGone,
    InferenceRequest,
    Receive,
    Scope,
    Send,
    build,
    parse_body,
    pinned_host,
    read_body,
    request_id,
    session_value,
)
from viiwork_core.web.claims import Claims
from viiwork_core.web.error_pages import error_body, send_cut, send_error
from viiwork_core.web.outcomes import CLIENT_GONE, Outcomes

STREAM_WAIT = b"x-viiwork-stream-wait"

_SESSION = re.compile(r"[0-9a-f]{16,64}")
_TURN = re.compile(r"[0-9]{1,15}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Inference:
    """POST on an inference path."""

    entry: Entry
    receiver: Receiver
    claims: Claims
    session_key: Callable[[str], str]
    saw: Callable[[str, int], None]
    """Takes note of a session's newest turn, as the node that forwarded knows it."""

    max_body: int
    budget: BodyBudget
    stream_wait: bool
    """Every streamed request that waits is told its place in line, not only those that ask for it."""

    clock: Clock
    events: EventLog
    outcomes: Outcomes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.budget.share() as share:
            await self._handle(scope, receive, send, share)

    async def _handle(self, scope: Scope, receive: Receive, send: Send, share: Share) -> None:
        began = self.clock.monotonic()
        rid = request_id(scope["headers"])
        exchange: Exchange | None = None
        hop = False
        # What none of the branches below explains is a defect, or the node's own end.
        status, reason = ViiworkError.status, None
        try:
            raw = await read_body(scope, receive, self.max_body, share)
            hop = await self.claims.hop(scope, raw) is not None
            exchange = self._exchange(scope, send, self._request(scope, await parse_body(raw), rid, hop=hop), hop=hop)
            await self._watched(exchange, receive, hop=hop)
            status = exchange.status or status
        except ClientGone as gone:
            status, reason = CLIENT_GONE, str(gone)
        except ViiworkError as error:
            status, reason = error.status, error.message
            if exchange is not None and exchange.started:
                await send_cut(exchange, error)
            elif exchange is not None and exchange.announced:
                await exchange.fail(error_body(error))
            else:
                await send_error(send, error, request_id=rid)
        finally:
            self._tell(exchange, rid, status, reason, self.clock.monotonic() - began, hop=hop)

    def _exchange(self, scope: Scope, send: Send, request: InferenceRequest, *, hop: bool) -> Exchange:
        # A forward never waits, so it has no place in line.
        wanted = self.stream_wait or first(scope["headers"], STREAM_WAIT) == "1"
        return Exchange(
            request,
            send,
            http=scope["http_version"],
            trail=self.events.request(request.query.model, request.id),
            tells_place=request.stream and wanted and not hop,
        )

    def _request(self, scope: Scope, body: Body, rid: str, *, hop: bool) -> InferenceRequest:
        if hop:
            session = _session_hex(first(scope["headers"], SESSION.lower().encode()))
            turn = first(scope["headers"], TURN.lower().encode())
            if session and turn and _TURN.fullmatch(turn):
                self.saw(session, int(turn))
            return build(scope, body, session, pin=None, rid=rid)
        value = session_value(scope["headers"])
        session = self.session_key(value) if value else None
        return build(scope, body, session, pin=pinned_host(scope["query_string"]), rid=rid)

    async def _watched(self, exchange: Exchange, receive: Receive, *, hop: bool) -> None:
        """Serve while listening for the client's leaving. Raises ClientGone when it left."""
        with anyio.CancelScope() as scope:
            watcher = asyncio.create_task(_watch(exchange, receive, scope))
            try:
                await (self.receiver if hop else self.entry).serve(exchange)
            finally:
                watcher.cancel()
        if scope.cancelled_caught:
            raise ClientGone("the client left")

    def _tell(
        self, exchange: Exchange | None, rid: str, status: int, reason: str | None, seconds: float, *, hop: bool
    ) -> None:
        if exchange is None:
            self.outcomes.unread(rid, status, reason, seconds)
        else:
            self.outcomes.ended(exchange, status, reason, seconds, hop=hop)


def _session_hex(value: str | None) -> str | None:
    return value if value and _SESSION.fullmatch(value) else None


async def _watch(exchange: Exchange, receive: Receive, scope: anyio.CancelScope) -> None:
    """Cancel the work when the client leaves; after the last byte its leaving means nothing."""
    while (await receive())["type"] != "http.disconnect":
        pass
    if not exchange.finished:
        scope.cancel()
