"""Traces: the steps of one request on the nodes that it passes, for OpenTelemetry (docs/telemetry.md).

What the path of a request is given where traces are on; where they are off it has None, and nothing here is called. No
word of a prompt or an answer ever comes here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol

import msgspec

Header = tuple[str, str]


class Chosen(msgspec.Struct, frozen=True):
    """One choice of a host."""

    at: float
    """Monotonic time."""

    host: str | None
    """None: to wait was better than any."""

    policy: str | None
    candidates: int


class Ending(msgspec.Struct, frozen=True):
    """What is known of a request when it is over. Times are monotonic; None: not known, or it never was."""

    path: str
    status: int
    """499: the client left."""

    seconds: float
    """Since it came."""

    cut: bool = False
    """The answer broke off after its beginning."""

    model: str = ""
    """"": none that is known here."""

    alias: str | None = None
    stream: bool = False
    hop: bool = False
    backend: str | None = None
    peer: str | None = None
    queued_s: float = 0.0
    granted_at: float | None = None
    first_byte_at: float | None = None
    first_token_at: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    session: str = ""
    """How the session was found; "": the request was not read."""

    choices: Sequence[Chosen] = ()


class Trace(Protocol):
    """One request's. On the data loop; nothing here blocks or raises."""

    def calls(self, kind: Literal["engine", "peer"], name: str, headers: Sequence[Header], at: float) -> list[Header]:
        """The request is sent to an engine or a peer: the headers for it, with this step's traceparent in place of the
        client's. `at`: monotonic time."""
        ...

    def failed(self, code: str, at: float) -> None:
        """The last of these calls was in vain, with an error of that code."""
        ...

    def did(self, step: Literal["import", "save"], began: float, ended: float) -> None:
        """A step about the session's cache; a save is often over after the request."""
        ...

    def read(self, end: bytes) -> None:
        """See the end of a complete answer, for why it ended."""
        ...

    def ended(self, ending: Ending) -> None:
        """The request is over."""
        ...


class Traces(Protocol):
    """Of one node."""

    def began(self, headers: Sequence[tuple[bytes, bytes]], rid: str, at: float) -> Trace:
        """A request has come, at that monotonic time."""
        ...

    async def run(self) -> None:
        """Until it is cancelled; then what is left is sent, for a moment at most."""
        ...
