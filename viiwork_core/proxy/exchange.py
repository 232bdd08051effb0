"""The client's side of one request: what has been sent, and what may still be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from viiwork_core.clock import Clock
from viiwork_core.kvshare.turns import Usage
from viiwork_core.observe.events import Trail
from viiwork_core.observe.traces import Trace
from viiwork_core.proxy.headers import Raw, returning
from viiwork_core.proxy.reply import Reply
from viiwork_core.proxy.request import InferenceRequest, Send
from viiwork_core.proxy.usage import AnswerEnd
from viiwork_core.routing.ticket import Ticket

_UNTOLD: Final = Usage()


class Try(msgspec.Struct, frozen=True, gc=False):
    """A place that did not serve the request."""

    place: str
    """A backend of this node, or "peer NODE"."""

    seconds: float
    """From the place granted to its refusal or failure."""

    reason: str


class Exchange(msgspec.Struct, eq=False):
    """Sends one answer, at most once."""

    request: InferenceRequest
    send: Send
    http: str = "1.1"
    trail: Trail | None = None
    """What the activity log hears of it."""

    ticket: Ticket | None = None
    """What the router has of it; None: it came from another node, which chose."""

    tries: list[Try] = msgspec.field(default_factory=list)
    """The places that refused it or failed."""

    extra: dict[str, str] = msgspec.field(default_factory=dict)
    """Headers that the answer will carry."""

    status: int | None = None
    """What was sent; None: nothing yet, so another route may still be tried."""

    tells_place: bool = False
    """The client wants to know its place in line, whatever that does to the answer's status."""

    announced: bool = False
    """The client has a 200 and comments about its place, and so must get a stream of events, or an event with an error.
    Another route may still be tried."""

    failed: bool = False
    """An announced answer has ended with an error."""

    streams: bool = False
    """The answer is a stream of events."""

    last: bytes = b""
    """The answer's last bytes, kept back until its place is free again: a client that has read them may ask again at
    once, and should find it free."""

    finished: bool = False
    """The answer is complete, or all but: whether the client stays no longer matters."""

    abandoned: bool = False
    """The client left, and the rest of the answer is read for the engine's sake only: nothing is sent any more."""

    backend: str | None = None
    """Where it runs or ran last: a backend of this node, or `peer`."""

    peer: str | None = None
    """The node that it was forwarded to."""

    usage: Usage = _UNTOLD
    cut_events: int = 0
    """Events of a stream that broke off, which has no usage: about as many as tokens."""

    queued_s: float = 0.0
    granted_at: float = 0.0
    """Monotonic time at which the last place was granted."""

    asked_at: float | None = None
    """Monotonic time at which that place was sent the request; None: not yet."""

    first_byte_at: float | None = None
    """Monotonic time of the first byte of the answer's body."""

    turn: int | None = None
    """Number of the session's turn, where it ran on this node."""

    reply: Reply | None = None
    """The beginning of the answer; None: there is no good one."""

    first_token_at: float | None = None
    """Monotonic time of a stream's first token, thinking counted."""

    trace: Trace | None = None
    """None: traces are off."""

    @property
    def started(self) -> bool:
        """Whether the client has seen anything of an answer."""
        return self.status is not None

    @property
    def is_failure(self) -> bool:
        """Whether the answer that was passed on says that its place is at fault."""
        return self.status is not None and self.status >= 500

    @property
    def first_byte_s(self) -> float | None:
        """From the place granted to the first byte of body, in seconds."""
        return None if self.first_byte_at is None else self.first_byte_at - self.granted_at

    def begun(self, now: float) -> None:
        """The first bytes of the answer's body are here."""
        self.first_byte_at = now
        if self.trail is not None and self.streams:
            self.trail.first_token(now - self.granted_at)

    @property
    def first_token_s(self) -> float | None:
        """From the place granted to the first token, in seconds; of a plain answer, to its first byte."""
        return self.first_byte_s if self.first_token_at is None else self.first_token_at - self.granted_at

    @property
    def place(self) -> str | None:
        """Where it runs or ran last, as the log of activity calls it."""
        return self.backend or (None if self.peer is None else f"peer {self.peer}")

    def silence(self, now: float) -> float:
        """Seconds for which the place that has the request has said nothing; 0 once the answer has begun."""
        return 0.0 if self.started or self.asked_at is None else now - self.asked_at

    def placed(self, now: float, *, backend: str | None = None, peer: str | None = None) -> None:
        """A place was granted, here or at another node."""
        self.granted_at, self.asked_at, self.backend, self.peer = now, None, backend, peer
        if self.trail is not None:
            self.trail.placed(self.place or "")

    async def tell_place(self, place: int) -> None:
        """Tell a client that waits its place in line."""
        await self.tell(b": queued position=%d\n\n" % place)

    async def tell(self, comment: bytes) -> None:
        """Send a client that waits a comment, as long as nothing else has come. The first one begins the answer."""
        if not self.announced and not self.started:
            self.announced = True
            headers = {"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"}
            sent = returning((), from_peer=False, extra={**headers, "X-Request-Id": self.request.id})
            await self._send({"type": "http.response.start", "status": 200, "headers": sent})
        if self.first_byte_at is None and not self.finished:
            await self.pass_on(comment)

    async def begin(self, status: int, headers: Sequence[Raw], *, from_peer: bool, extra: Mapping[str, str]) -> None:
        """Send status and headers."""
        self.status = status
        if status == 200:
            self.reply = Reply(stream=self.streams)
        if self.announced:
            return
        merged = {"X-Request-Id": self.request.id, **self.extra, **extra}
        sent = returning(headers, from_peer=from_peer, extra=merged)
        await self._send({"type": "http.response.start", "status": status, "headers": sent})

    def saw(self, chunk: bytes, clock: Clock) -> None:
        """The next bytes of the answer's body have come."""
        if self.first_byte_at is None:
            self.begun(clock.monotonic())
        if self.streams and self.reply is not None:
            self.reply.feed(chunk)
            if self.first_token_at is None and self.reply.began:
                self.first_token_at = clock.monotonic()

    def read(self, end: AnswerEnd) -> None:
        """Take from the end of a complete answer what it tells."""
        self.usage = end.usage()
        if self.trace is not None:
            self.trace.read(end.text)
        if self.reply is not None and self.request.link is not None and not self.streams:
            self.reply.whole(end.text)

    def cut(self, end: AnswerEnd) -> None:
        """The answer has broken off, or its client has left."""
        self.cut_events = end.events

    async def pass_on(self, chunk: bytes) -> None:
        """Send bytes of the body as they came."""
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def fail(self, error: bytes) -> None:
        """End an announced answer with an error, an object in JSON on one line: as an event, and then a broken end.

        In HTTP/2 a client would wait for ever, so that there the event alone must do.
        """
        await self.pass_on(b"data: " + error + b"\n\n")
        self.last = b""
        if not self.http.startswith("1."):
            await self.finish()
        self.finished = self.failed = True

    async def finish(self) -> None:
        """Send what is kept back, and end the answer. Without it the connection breaks, which is how a cut is shown."""
        if self.failed:
            return
        self.finished = True
        await self._send({"type": "http.response.body", "body": self.last, "more_body": False})

    async def _send(self, message: dict[str, object]) -> None:
        if not self.abandoned:
            await self.send(message)
