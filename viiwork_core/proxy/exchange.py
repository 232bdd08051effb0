"""The client's side of one request: what has been sent, and what may still be."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from viiwork_core.kvshare.turns import Usage
from viiwork_core.proxy.headers import Raw, returning
from viiwork_core.proxy.request import InferenceRequest, Send


@dataclass(slots=True)
class Exchange:
    """Sends one answer, at most once."""

    request: InferenceRequest
    send: Send
    extra: dict[str, str] = field(default_factory=dict)
    """Headers that the answer will carry."""

    status: int | None = None
    """What was sent; None: nothing yet, so another route may still be tried."""

    finished: bool = False
    """The answer is complete, or all but: whether the client stays no longer matters."""

    backend: str | None = None
    usage: Usage = field(default_factory=Usage)
    queued_s: float = 0.0
    first_byte_s: float | None = None

    @property
    def started(self) -> bool:
        """Whether the client has seen anything of an answer."""
        return self.status is not None

    async def begin(self, status: int, headers: Iterable[Raw], *, from_peer: bool, extra: Mapping[str, str]) -> None:
        """Send status and headers."""
        merged = {"X-Request-Id": self.request.id, **self.extra, **extra}
        self.status = status
        start = {
            "type": "http.response.start",
            "status": status,
            "headers": returning(headers, from_peer=from_peer, extra=merged),
        }
        await self.send(start)

    async def pass_on(self, chunk: bytes) -> None:
        """Send bytes of the body as they came."""
        await self.send({"type": "http.response.body", "body": chunk, "more_body": True})

    async def finish(self) -> None:
        """End the answer. Leaving this out breaks the connection, which is how a cut is shown."""
        self.finished = True
        await self.send({"type": "http.response.body", "body": b"", "more_body": False})
