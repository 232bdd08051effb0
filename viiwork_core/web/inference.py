"""The raw ASGI handler of the inference paths: reads the request, watches the client, logs the outcome."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass

import anyio
import structlog

from viiwork_core.clock import Clock
from viiwork_core.contracts.policy import Outcome
from viiwork_core.errors import AnswerCut, ViiworkError
from viiwork_core.proxy.body import Body
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
from viiwork_core.web.error_pages import send_error

CLIENT_GONE = 499
"""Status that logs and outcomes give a request whose client left; it is never sent."""

_SESSION = re.compile(r"[0-9a-f]{16,64}")
_TURN = re.compile(r"[0-9]{1,15}", re.ASCII)

_log = structlog.get_logger("viiwork.request")


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
    clock: Clock
    observe: Callable[[Outcome], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = self.clock.monotonic()
        rid = request_id(scope["headers"])
        exchange: Exchange | None = None
        status, reason = CLIENT_GONE, None
        try:
            raw = await read_body(scope, receive, self.max_body)
            hop = await self.claims.hop(scope, raw)
            exchange = Exchange(self._request(scope, await parse_body(raw), rid, hop=hop is not None), send)
            gone = await self._watched(exchange, receive, hop=hop is not None)
            status = CLIENT_GONE if gone else exchange.status or CLIENT_GONE
        except ClientGone:
            reason = "the client left while sending"
        except AnswerCut as error:
            # Nothing more is sent: the server breaks the connection, and the client can tell.
            status, reason = error.status, error.message
        except ViiworkError as error:
            status, reason = error.status, error.message
            await send_error(send, error, request_id=rid)
        finally:
            self._tell(exchange, rid, status, reason, self.clock.monotonic() - began)

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

    async def _watched(self, exchange: Exchange, receive: Receive, *, hop: bool) -> bool:
        """Serve while listening for the client's leaving. True: it left."""
        with anyio.CancelScope() as scope:
            watcher = asyncio.create_task(_watch(exchange, receive, scope))
            try:
                await (self.receiver if hop else self.entry).serve(exchange)
            finally:
                watcher.cancel()
        return scope.cancelled_caught

    def _tell(self, exchange: Exchange | None, rid: str, status: int, reason: str | None, seconds: float) -> None:
        if exchange is None:
            _log.info("request", request_id=rid, status=status, reason=reason)
            return
        query, usage = exchange.request.query, exchange.usage
        first_ms = None if exchange.first_byte_s is None else exchange.first_byte_s * 1000
        _log.info(
            "request",
            request_id=rid,
            model=query.model,
            backend=exchange.backend,
            status=status,
            reason=reason,
            queued_ms=round(exchange.queued_s * 1000),
            ttft_ms=None if first_ms is None else round(first_ms),
            total_ms=round(seconds * 1000),
            tokens_in=usage.prompt,
            tokens_cached=usage.cached,
            tokens_out=usage.completion,
        )
        if exchange.backend is not None:
            outcome = Outcome(
                model=query.model,
                candidate=exchange.backend,
                session=query.session,
                status=status,
                prompt_tokens=usage.prompt,
                cached_tokens=usage.cached,
                completion_tokens=usage.completion,
                first_token_ms=first_ms,
            )
            self.observe(outcome)


def _session_hex(value: str | None) -> str | None:
    return value if value and _SESSION.fullmatch(value) else None


async def _watch(exchange: Exchange, receive: Receive, scope: anyio.CancelScope) -> None:
    """Cancel the work when the client leaves; after the last byte its leaving means nothing."""
    while (await receive())["type"] != "http.disconnect":
        pass
    if not exchange.finished:
        scope.cancel()
