"""A client's inference request: the few fields that are read, and the bytes that go on."""

from __future__ import annotations

import re
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

import anyio
import anyio.to_thread
import msgspec

from viiwork_core.contracts.policy import Query
from viiwork_core.errors import BodyTooLarge, InvalidRequest
from viiwork_core.proxy.body import Body, first_byte
from viiwork_core.proxy.budget import Share
from viiwork_core.proxy.headers import Raw, first

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LARGE = 1024 * 1024
"""Bodies over this are parsed and hashed in a thread (31 MiB take 58 ms to parse and 31 ms to hash)."""

LONGEST_NAME = 256
"""Characters of a model's name; no node can report a longer one."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_ONE, _NUMBER = msgspec.Raw(b'""'), frozenset(bytes([digit]) for digit in b"-0123456789")
_HOST = re.compile(r"[A-Za-z0-9.:_\-\[\]]{1,253}")


class ClientGone(Exception):  # an event, caught by name where the request is handled
    """The client closed its connection before its request was complete."""


@dataclass(frozen=True, slots=True)
class InferenceRequest:
    """What a client wants."""

    id: str
    path: str
    target: str
    """Path and query as they came."""

    headers: list[Raw]
    body: Body
    query: Query
    weight: int
    stream: bool
    wants_usage: bool
    """The client asked for a stream's usage chunk itself."""

    pin: str | None


async def read_body(scope: Scope, receive: Receive, limit: int, share: Share | None = None) -> bytes:
    """The whole body, counted in `share`. Raises ClientGone, and BodyTooLarge or BodiesFull before reading more."""
    announced = first(scope["headers"], b"content-length")
    if announced is not None and announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    if share is not None and announced is not None and announced.isdecimal():
        share.announce(int(announced))
    chunks, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("the client left while sending")
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise _too_large(limit)
        if share is not None:
            share.take(len(chunk))
        chunks.append(chunk)
        if not message.get("more_body", False):
            return b"".join(chunks)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is over {limit} bytes", remedy="raise api.max_body, or send less")


async def parse_body(raw: bytes) -> Body:
    """Read a JSON object, a large one in a thread."""
    return await anyio.to_thread.run_sync(Body, raw) if len(raw) > LARGE else Body(raw)


def request_id(headers: list[Raw]) -> str:
    """The client's X-Request-Id if it is a plain word, else a new one."""
    given = first(headers, b"x-request-id")
    return given if given and _REQUEST_ID.fullmatch(given) else f"req-{secrets.token_hex(12)}"


def session_value(headers: list[Raw]) -> str | None:
    """What the client calls its session: X-Session-Affinity, else X-Session-Id."""
    return first(headers, b"x-session-affinity") or first(headers, b"x-session-id")


def pinned_host(query_string: bytes) -> str | None:
    """The host in ?host=; absent, blank or "mesh" = none. Compared with node names, never dialled."""
    values = parse_qs(query_string.decode("latin-1"), keep_blank_values=True).get("host", [])
    host = values[0].strip() if values else ""
    if host in ("", "mesh"):
        return None
    if not _HOST.fullmatch(host):
        raise InvalidRequest("invalid host parameter", remedy="name a node as /v1/status does")
    return host


def build(scope: Scope, body: Body, session: str | None, *, pin: str | None, rid: str) -> InferenceRequest:
    """Put a request together. Raises InvalidRequest for a missing or malformed field."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("model is required", remedy='send {"model": NAME}; GET /v1/models lists the names')
    if len(model) > LONGEST_NAME:
        raise InvalidRequest(f"model is longer than {LONGEST_NAME} characters")
    options = body.get("stream_options")
    return InferenceRequest(
        id=rid,
        path=scope["path"],
        target=target(scope),
        headers=scope["headers"],
        body=body,
        query=Query(model=model, session=session, prompt_tokens=max(1, len(body.raw) // 4)),
        weight=_weight(scope["path"], body),
        stream=body.get("stream") is True,
        wants_usage=isinstance(options, dict) and options.get("include_usage") is True,
        pin=pin,
    )


def target(scope: Scope) -> str:
    """Path and query as they stand in the request line."""
    path: str = scope["raw_path"].decode("latin-1")
    return f"{path}?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else path


def _weight(path: str, body: Body) -> int:
    """Slots that a request takes in an engine: n times its prompts."""
    n = body.get("n")
    prompts = body.items("input" if path.endswith("/embeddings") else "prompt") or [_ONE]
    # A list of numbers is one prompt, given as tokens.
    count = 1 if first_byte(prompts[0]) in _NUMBER else len(prompts)
    return count * (n if isinstance(n, int) and not isinstance(n, bool) and n > 0 else 1)
