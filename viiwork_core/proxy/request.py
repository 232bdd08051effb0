"""A client's inference request: the few fields that are read, and the bytes that go on."""

from __future__ import annotations

import asyncio
import random
import re
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs

import anyio
import anyio.to_thread
import msgspec

from viiwork_core.contracts.policy import Query
from viiwork_core.errors import BodyTooLarge, InvalidRequest, RequestLate
from viiwork_core.proxy.body import Body, first_byte
from viiwork_core.proxy.budget import Share
from viiwork_core.proxy.headers import Raw, first
from viiwork_core.proxy.interruption import Interruption
from viiwork_core.routing.sessions import Found

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

LARGE = 1024 * 1024
"""Bodies over this are parsed and hashed in a thread (31 MiB take 58 ms to parse and 31 ms to hash)."""

SILENCE_S = 30.0
"""How long a client may send nothing of a body that is not complete."""

LONGEST_NAME = 256
"""Characters of a model's name; no node can report a longer one."""

_chance = random.Random()  # noqa: S311  # ids tell requests apart and keep no secret; a system call each is dear
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
_ONE, _NUMBER = msgspec.Raw(b'""'), frozenset(bytes([digit]) for digit in b"-0123456789")
_HOST = re.compile(r"[A-Za-z0-9.:_\-\[\]]{1,253}")

UPGRADE = "viiwork.upgrade"
"""In a scope's `state`, where the server can do that: an Upgrade."""

Upgrade = Callable[[], Awaitable[socket.socket]]
"""Takes a request's connection out of HTTP. From then on its answer is what is written to the socket, which is the
caller's to close. Raises UpgradeUnsupported, InvalidRequest for a client that has not waited, and OSError for one that
has left."""

PREFER = b"x-viiwork-prefer"
MOST_PREFERRED = 8
"""Hosts that a request may prefer."""


class ClientGone(Exception):  # an event, caught by name where the request is handled
    """The client closed its connection before its request was complete."""


class InferenceRequest(msgspec.Struct, frozen=True):
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
    prefer: tuple[str, ...] = ()
    """Hosts that are tried first, where they have room."""

    alias: str | None = None
    """What the client called the model, where that is an alias."""

    found: Found = Found.NONE
    """How its session was found."""

    key: str = ""
    """The API key that it was sent with, by name; "" without."""

    share: int = 1
    """That key's weight among those that wait here."""

    link: int | None = None
    """The hash that its conversation is known by at this turn; None: it shows nothing of one."""


class Whose(msgspec.Struct, frozen=True, gc=False):
    """Whose turn a request is."""

    session: str | None = None
    """Keyed hash, hex; None: nobody's."""

    begins: bool = False
    continues: bool = False
    link: int | None = None
    """As of InferenceRequest."""

    found: Found = Found.NONE
    """How the session was found."""


async def read_body(scope: Scope, receive: Receive, limit: int, share: Share | None = None) -> bytes:
    """The whole body, counted in `share`.

    Raises ClientGone, RequestLate after SILENCE_S without news, and BodyTooLarge or BodiesFull before reading more.
    """
    announced = first(scope["headers"], b"content-length")
    if announced is not None and announced.isdecimal() and int(announced) > limit:
        raise _too_large(limit)
    if share is not None and announced is not None and announced.isdecimal():
        share.announce(int(announced))
    with _Silence() as silence:
        return await _whole(receive, limit, share, silence)


async def _whole(receive: Receive, limit: int, share: Share | None, silence: _Silence) -> bytes:
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
        silence.broken()


class _Silence:
    """`with _Silence()` around the reading of a body ends with RequestLate after SILENCE_S without news.

    Its timer runs on when news comes, and only then looks for how long there was none: asyncio.timeout, set again with
    each piece of a body, takes 13 us for a short one, and this 6.
    """

    __slots__ = ("_end", "_heard_at", "_timer")

    def __enter__(self) -> Self:
        self._end = Interruption()
        loop = asyncio.get_running_loop()
        self._heard_at = loop.time()
        self._timer = loop.call_later(SILENCE_S, self._look)
        return self

    def broken(self) -> None:
        """Something has come."""
        self._heard_at = asyncio.get_running_loop().time()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        rest = self._heard_at + SILENCE_S - loop.time()
        if rest > 0:
            self._timer = loop.call_later(rest, self._look)
        else:
            self._end.come()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._end.took(kind):
            what = f"nothing of the body has come for {SILENCE_S:g} seconds"
            raise RequestLate(what, remedy="send all that Content-Length announces, or end the chunks") from None


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is over {limit} bytes", remedy="raise api.max_body, or send less")


async def parse_body(raw: bytes) -> Body:
    """Read a JSON object, a large one in a thread."""
    return await anyio.to_thread.run_sync(Body, raw) if len(raw) > LARGE else Body(raw)


def request_id(headers: list[Raw]) -> str:
    """The client's X-Request-Id if it is a plain word, else a new one."""
    given = first(headers, b"x-request-id")
    return given if given and _REQUEST_ID.fullmatch(given) else f"req-{_chance.getrandbits(96):024x}"


def session_value(headers: list[Raw]) -> str | None:
    """What the client calls its session: X-Session-Affinity, else X-Session-Id."""
    return first(headers, b"x-session-affinity") or first(headers, b"x-session-id")


def pinned_host(query_string: bytes) -> str | None:
    """The host in ?host=; absent, blank or "mesh" = none. Compared with node names, never dialled."""
    if not query_string:
        return None
    values = parse_qs(query_string.decode("latin-1"), keep_blank_values=True).get("host", [])
    host = values[0].strip() if values else ""
    if host in ("", "mesh"):
        return None
    if not _HOST.fullmatch(host):
        raise InvalidRequest("invalid host parameter", remedy="name a node as /v1/status does")
    return host


def preferred_hosts(query_string: bytes, headers: list[Raw]) -> tuple[str, ...]:
    """The hosts in ?prefer=a,b, else in X-Viiwork-Prefer: each once, in that order; blanks and "mesh" are none.

    Compared with node names, never dialled. Raises InvalidRequest.
    """
    values = parse_qs(query_string.decode("latin-1")).get("prefer") if query_string else None
    said = values[0] if values and values[0].strip() else first(headers, PREFER)
    if said is None:
        return ()
    names = [name for name in map(str.strip, said.split(",")) if name not in ("", "mesh")]
    if len(names) > MOST_PREFERRED or not all(map(_HOST.fullmatch, names)):
        remedy = f"name at most {MOST_PREFERRED} nodes as /v1/status does, with commas between"
        raise InvalidRequest("invalid prefer parameter", remedy=remedy)
    return tuple(dict.fromkeys(names))


async def resolved(body: Body, resolve: Callable[[str], str | None]) -> str | None:
    """Write the model that an alias stands for into the body; the alias, None: the body names none."""
    name = body.get("model")
    model = resolve(name) if isinstance(name, str) else None
    if model is None:
        return None
    body.set("model", model)
    if len(body.raw) > LARGE:
        await anyio.to_thread.run_sync(body.settle)
    else:
        body.settle()
    return str(name)


def model_of(body: Body) -> str:
    """The model that a body names. Raises InvalidRequest."""
    model = body.get("model")
    if not isinstance(model, str) or not model:
        raise InvalidRequest("model is required", remedy='send {"model": NAME}; GET /v1/models lists the names')
    if len(model) > LONGEST_NAME:
        raise InvalidRequest(f"model is longer than {LONGEST_NAME} characters")
    return model


def build(
    scope: Scope,
    body: Body,
    whose: Whose,
    *,
    pin: str | None,
    rid: str,
    prefer: tuple[str, ...] = (),
    alias: str | None = None,
    key: str = "",
    share: int = 1,
    prompt_tokens: int | None = None,
) -> InferenceRequest:
    """Put a request together. `prompt_tokens`: None: a quarter of its bytes.

    Raises InvalidRequest for a missing or malformed field.
    """
    model = model_of(body)
    tokens = max(1, len(body.raw) // 4) if prompt_tokens is None else prompt_tokens
    options = body.get("stream_options")
    return InferenceRequest(
        id=rid,
        path=scope["path"],
        target=target(scope),
        headers=scope["headers"],
        body=body,
        query=Query(model, whose.session, tokens, begins=whose.begins, continues=whose.continues),
        weight=_weight(scope["path"], body),
        stream=body.get("stream") is True,
        wants_usage=isinstance(options, dict) and options.get("include_usage") is True,
        pin=pin,
        prefer=prefer,
        alias=alias,
        found=whose.found,
        key=key,
        share=share,
        link=whose.link,
    )


def target(scope: Scope) -> str:
    """Path and query as in the request line."""
    path: str = scope["raw_path"].decode("latin-1")
    return f"{path}?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else path


def _weight(path: str, body: Body) -> int:
    """Slots that a request takes in an engine: n times its prompts."""
    n = body.get("n")
    prompts = body.items("input" if path.endswith("/embeddings") else "prompt") or [_ONE]
    # A list of numbers is one prompt, given as tokens.
    count = 1 if first_byte(prompts[0]) in _NUMBER else len(prompts)
    return count * (n if isinstance(n, int) and not isinstance(n, bool) and n > 0 else 1)
