"""The client's side of one request: what has been sent, and what may still be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from viiwork_core.kvshare.turns import Usage
from viiwork_core.observe.events import Trail
from viiwork_core.proxy.headers import Raw, returning
from viiwork_core.proxy.request import InferenceRequest, Send


@dataclass(slots=True)
class Exchange:
    """Sends one answer, at most once."""

    request: InferenceRequest
    send: Send
    http: str = "1.1"
    trail: Trail | None = None
    """What the activity log hears of it."""

    extra: dict[str, str] = field(default_factory=dict)
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

    usage: Usage = field(default_factory=Usage)
    queued_s: float = 0.0
    granted_at: float = 0.0
    """Monotonic time at which the last place was granted."""

    first_byte_at: float | None = None
    """Monotonic time of the first byte of the answer's body."""

    @property
    def started(self) -> bool:
        """Whether the client has seen anything of an answer."""
        return self.status is not None

    @property
    def first_byte_s(self) -> float | None:
        """From the place granted to the first byte of body, in seconds."""
        return None if self.first_byte_at is None else self.first_byte_at - self.granted_at

    def placed(self, now: float, *, backend: str | None = None, peer: str | None = None) -> None:
        """A place was granted, here or at another node."""
        self.granted_at, self.backend, self.peer = now, backend, peer
        if self.trail is not None:
            self.trail.placed(backend or f"peer {peer}")

    async def tell_place(self, place: int) -> None:
        """Tell a client that waits its place in line, in a comment. The first one begins the answer."""
        if not self.announced:
            self.announced = True
            headers = {"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"}
            sent = returning((), from_peer=False, extra={**headers, "X-Request-Id": self.request.id})
            await self._send({"type": "http.response.start", "status": 200, "headers": sent})
        await self.pass_on(b": queued position=%d\n\n" % place)

    async def begin(self, status: int, headers: Sequence[Raw], *, from_peer: bool, extra: Mapping[str, str]) -> None:
        """Send status and headers."""
        self.status = status
        if self.announced:
            return
        merged = {"X-Request-Id": self.request.id, **self.extra, **extra}
        sent = returning(headers, from_peer=from_peer, extra=merged)
        await self._send({"type": "http.response.start", "status": status, "headers": sent})

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
