"""The raw ASGI handler of the inference paths: reads the request, watches the client, tells of the outcome."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from viiwork_core.clock import Clock, SystemClock
from viiwork_core.errors import ViiworkError
from viiwork_core.observe.events import EventLog
from viiwork_core.observe.traces import Trace
from viiwork_core.proxy.account import Accounts, End
from viiwork_core.proxy.body import Body
from viiwork_core.proxy.budget import BodyBudget, Share
from viiwork_core.proxy.entry import QUEUED, Entry, Receiver
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.forward import BEGINS, CHAIN, KEY, SESSION, TURN
from viiwork_core.proxy.headers import Raw, first
from viiwork_core.proxy.interruption import Interruption
from viiwork_core.proxy.request import (
    ClientGone,
    InferenceRequest,
    Receive,
    Scope,
    Send,
    Whose,
    build,
    model_of,
    parse_body,
    pinned_host,
    preferred_hosts,
    read_body,
    request_id,
    resolved,
    session_value,
)
from viiwork_core.security.keys import NAME, SCOPE_KEY, ApiKey
from viiwork_core.web.claims import Claims
from viiwork_core.web.comments import Comments, in_turn
from viiwork_core.web.error_pages import error_body, send_cut, send_error
from viiwork_core.web.outcomes import CLIENT_GONE, Outcomes
from viiwork_core.web.tracing import unread

ALIAS = "X-Viiwork-Alias"
STREAM_WAIT = b"x-viiwork-stream-wait"

WATCH_AFTER_S = 0.05
"""Seconds that a request may take before anybody listens for its client's leaving."""

_SESSION = re.compile(r"[0-9a-f]{16,64}")
_LINK = re.compile(r"[0-9a-f]{16}")
_TURN = re.compile(r"[0-9]{1,15}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Inference:
    """POST on an inference path."""

    entry: Entry
    receiver: Receiver
    claims: Claims
    identify: Callable[[str, str, Body, str | None], Awaitable[Whose]]
    """(path, model, body, what the client calls its session) -> whose turn it is."""

    prompt_tokens: Callable[[str, int], int]
    """(model, bytes of the body) -> estimated tokens of the prompt."""

    saw: Callable[[str, int], None]
    """Takes note of a session's newest turn, as the node that forwarded knows it."""

    max_body: int
    budget: BodyBudget
    stream_wait: bool
    """Every streamed request that waits, in line or for its first token, is told so, not only those that ask for it."""

    clock: Clock
    events: EventLog
    outcomes: Outcomes
    node: str = ""
    """This node's name."""

    accounts: Accounts = field(default_factory=lambda: Accounts(SystemClock()))
    """What is kept of requests, for whoever asks why."""

    resolve: Callable[[str], str | None] = lambda _: None
    """The model that a name stands for; None: it is no alias. Raises ModelNotServed."""

    admit: Callable[[ApiKey, str, str | None], None] = lambda *_: None
    """(key, model, alias) Lets a client through. Raises ModelForbidden, AllowanceSpent."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.budget.share() as share:
            await self._handle(scope, receive, send, share)

    async def _handle(self, scope: Scope, receive: Receive, send: Send, share: Share) -> None:
        began = self.clock.monotonic()
        rid = request_id(scope["headers"])
        exchange: Exchange | None = None
        traces, hop = self.outcomes.traces, False
        trace = None if traces is None else traces.began(scope["headers"], rid, began)
        # What none of the branches below explains is a defect, or the node's own end.
        status, reason = ViiworkError.status, None
        try:
            raw = await read_body(scope, receive, self.max_body, share)
            claimed = await self.claims.hop(scope, raw)
            # What is not believed in an open mesh is an ordinary client's, and still not forwarded again.
            only = self.claims.node if claimed == "" else None
            hop = claimed is not None and not only
            body = await parse_body(raw)
            alias = None if hop else await resolved(body, self.resolve)
            request = await self._request(scope, body, rid, hop=hop, only=only, alias=alias)
            exchange = self._exchange(scope, send, request, trace, hop=hop)
            self.accounts.began(exchange, hop=hop, before=self.clock.monotonic() - began)
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
                await send_error(send, error, request_id=rid, extra=self._where(exchange))
        finally:
            seconds = self.clock.monotonic() - began
            if trace is not None and exchange is None:
                trace.ended(unread(scope["path"], status, seconds))
            self._tell(exchange, rid, status, reason, seconds, hop=hop)

    def _exchange(
        self, scope: Scope, send: Send, request: InferenceRequest, trace: Trace | None, *, hop: bool
    ) -> Exchange:
        # A forward never waits, so it has no place in line.
        wanted = self.stream_wait or first(scope["headers"], STREAM_WAIT) == "1"
        tells = request.stream and wanted and not hop
        if tells:
            send = in_turn(send)
        if self.outcomes.prompts is not None and not hop:
            send = self.outcomes.prompts.gathering(send)
        return Exchange(
            request,
            send,
            http=scope["http_version"],
            trail=self.events.request(request.query.model, request.id),
            tells_place=tells,
            extra={} if request.alias is None else {ALIAS: request.alias},
            trace=trace,
        )

    def _where(self, exchange: Exchange | None) -> dict[str, str]:
        """What an error says of where it comes from, as an answer does."""
        backend = exchange.backend if exchange is not None else None
        queued = exchange.extra.get(QUEUED, "0") if exchange is not None else "0"
        return {
            "x-viiwork-node": self.node,
            QUEUED.lower(): queued,
            **({} if backend is None else {"x-viiwork-backend": backend}),
        }

    async def _request(
        self, scope: Scope, body: Body, rid: str, *, hop: bool, only: str | None, alias: str | None
    ) -> InferenceRequest:
        if hop:
            return build(scope, body, self._sent(scope["headers"]), pin=None, rid=rid, key=self._key(scope["headers"]))
        model, pin = model_of(body), only or pinned_host(scope["query_string"])
        key: ApiKey | None = scope.get(SCOPE_KEY)
        if key is not None:
            self.admit(key, model, alias)
        prefer = preferred_hosts(scope["query_string"], scope["headers"])
        whose = await self.identify(scope["path"], model, body, session_value(scope["headers"]))
        tokens = self.prompt_tokens(model, len(body.raw))
        name, share = ("", 1) if key is None else (key.name, key.weight)
        return build(
            scope,
            body,
            whose,
            pin=pin,
            prefer=prefer,
            rid=rid,
            alias=alias,
            key=name,
            share=share,
            prompt_tokens=tokens,
        )

    def _key(self, headers: list[Raw]) -> str:
        """Whose key the client of the node that forwarded it has shown. In an open mesh anybody could say that."""
        return (_matching(headers, KEY, NAME) or "") if self.claims.verifier is not None else ""

    def _sent(self, headers: list[Raw]) -> Whose:
        """Whose turn it is, as the node that forwarded it says."""
        session = _matching(headers, SESSION, _SESSION)
        turn, link = _matching(headers, TURN, _TURN), _matching(headers, CHAIN, _LINK)
        if session and turn:
            self.saw(session, int(turn))
        begins = first(headers, BEGINS.lower().encode()) == "1"
        return Whose(session, begins=begins, link=None if link is None else int(link, 16))

    async def _watched(self, exchange: Exchange, receive: Receive, *, hop: bool) -> None:
        """Serve while listening for the client's leaving. Raises ClientGone when it left."""
        watch = _Watch(exchange, receive)
        comments = Comments(exchange) if exchange.tells_place else None
        try:
            await (self.receiver if hop else self.entry).serve(exchange)
        except asyncio.CancelledError:
            if watch.ended_it():
                raise ClientGone("the client left") from None
            raise
        finally:
            watch.stop()
            if comments is not None:
                comments.stop()

    def _tell(
        self, exchange: Exchange | None, rid: str, status: int, reason: str | None, seconds: float, *, hop: bool
    ) -> None:
        if exchange is None:
            self.outcomes.unread(rid, status, reason, seconds)
        else:
            self.accounts.ended(exchange, End(status, reason, seconds))
            self.outcomes.ended(exchange, status, reason, seconds, hop=hop)


def _matching(headers: list[Raw], name: str, pattern: re.Pattern[str]) -> str | None:
    """A header's value, if it is what it should be."""
    value = first(headers, name.lower().encode())
    return value if value and pattern.fullmatch(value) else None


class _Watch:
    """Cancels the task that makes one when the client leaves; after the last byte its leaving means nothing.

    A task beside each request costs a tenth of relaying a short answer, so it begins late, when most of those are out;
    what comes meanwhile is kept for it.
    """

    def __init__(self, exchange: Exchange, receive: Receive) -> None:
        self._exchange = exchange
        self._receive = receive
        self._end = Interruption()
        self._listening: asyncio.Task[None] | None = None
        self._timer = asyncio.get_running_loop().call_later(WATCH_AFTER_S, self._begin)

    def _begin(self) -> None:
        self._listening = asyncio.get_running_loop().create_task(self._listen())

    async def _listen(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._exchange.finished:
            self._end.come()

    def ended_it(self) -> bool:
        """Whether a cancellation that has just arrived was this one, and nobody else's besides."""
        return self._end.took(asyncio.CancelledError)

    def stop(self) -> None:
        """The work is done."""
        self._timer.cancel()
        if self._listening is not None:
            self._listening.cancel()
