"""The only HTTP client to other members: every request goes to a known address, signed when the mesh is secured."""

from __future__ import annotations

import asyncio
import io
import socket
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from types import TracebackType
from typing import Final, Self

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from viiwork_core.errors import BackendFailed
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.report import MAX_BYTES
from viiwork_core.mesh.sockets import SWITCHING, noticing, taken
from viiwork_core.security.signing import FORWARDED, NODE, STREAMED, TO, Digest, Signer, digest

FORWARD_CONNECT_S: Final = 5.0
POLL_CONNECT_S: Final = 0.5
NOT_MODIFIED: Final = 304
EVENT_STREAM: Final = "text/event-stream"

_IDLE_S = 4.0
"""How long a pooled connection is kept unused: less than the servers here keep theirs, so that none is found dead."""

_BIG_BODY = 1 << 20
_READ = 1 << 16

# Headers that aiohttp would add by itself. A forward carries the client's and no other: an Accept-Encoding of ours,
# say, would bring the client an encoding it never asked for.
_NOT_OURS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")

Header = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """A short answer, whatever its status."""

    status: int
    body: bytes
    wall: float | None = None
    """Unix seconds by the other machine's clock, whole ones; None: it did not say."""

    tag: str | None = None
    """What names this version of the body, for `known`."""


@dataclass(frozen=True, slots=True)
class Events:
    """A stream of events that has begun."""

    wall: float | None
    """Unix seconds by the other machine's clock when it began, whole ones; None: it did not say."""

    pieces: AsyncIterator[bytes]
    """What has arrived, as it does. Raises BackendFailed when the stream breaks off."""


class Links:
    """Connections to other members. One instance per event loop; `async with` opens and closes it.

    Errors before the first byte of an answer are BackendFailed; any status is an answer, and a redirect is one that is
    not followed.
    """

    def __init__(self, *, node: str, signer: Signer | None, source: str | None = None) -> None:
        """`signer` None: the mesh is open. `source`: this node's address in the mesh, for connections to come from,
        which is what an open mesh recognises a member by; None: the system chooses."""
        self._node = node
        self._signer = signer
        self._source = source
        self._opened: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._opened = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0,
                keepalive_timeout=_IDLE_S,
                local_addr=(self._source, 0) if self._source else None,
                socket_factory=noticing,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=FORWARD_CONNECT_S),
            trust_env=False,
            auto_decompress=False,
            skip_auto_headers=_NOT_OURS,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._opened is not None:
            await self._opened.close()

    async def come_from(self, source: str) -> None:
        """Set `source` later than at the start, before there is anyone to connect to."""
        await self.__aexit__(None, None, None)
        self._source = source
        await self.__aenter__()

    async def get_json_bytes(self, member: Member, path: str, timeout_s: float) -> bytes:
        """GET `path` (with its query) from a member's API within `timeout_s` seconds, and return the body of a 200.

        Raises BackendFailed for anything else, and for a body over 1 MiB.
        """
        return body_of(await self.ask(api_of(member), path, timeout_s, to=member.node_id), member, path)

    async def ask(
        self, address: str, path: str, timeout_s: float, *, to: str | None = None, known: str | None = None
    ) -> Answer:
        """GET `path` (with its query) from the API at ip:port within `timeout_s` seconds, whatever it answers.

        `to` is the node_id of the member that is meant; with it the request is worth nothing to another one. `known`
        is the tag of a body that is known: where it still is that one, NOT_MODIFIED is the answer. Raises BackendFailed
        when nothing answers, and for a body over 1 MiB.
        """
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=min(POLL_CONNECT_S, timeout_s))
        headers = [(TO, to)] if to is not None else []
        headers += [("If-None-Match", known)] if known is not None else []
        sent = await self._prove("GET", path, headers, b"")
        async with self._open("GET", f"http://{address}{path}", sent, None, timeout) as response:
            try:
                body = await _read_bounded(response)
            except (aiohttp.ClientError, TimeoutError) as error:
                raise BackendFailed(f"{address}: the answer to GET {path} broke off: {_words(error)}") from error
            headers_in = response.headers
            return Answer(response.status, body, _wall(headers_in.get("Date")), headers_in.get("ETag"))

    @asynccontextmanager
    async def open_events(self, member: Member, path: str, silence_s: float) -> AsyncIterator[Events]:
        """Follow a stream of events of a member's API, until it ends or nothing has come for `silence_s` seconds.

        Raises BackendFailed for any other answer, also inside the block when the stream breaks off.
        """
        headers = [(TO, member.node_id), ("Accept", EVENT_STREAM)]
        if self._signer is None:
            headers.append((NODE, self._node))
        sent = await self._prove("GET", path, headers, b"")
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=FORWARD_CONNECT_S, sock_read=silence_s)
        async with self._open("GET", f"http://{api_of(member)}{path}", sent, None, timeout) as response:
            if response.status != 200 or response.content_type != EVENT_STREAM:
                what = f"{member.node}: GET {path} answered {response.status} {response.content_type[:80]}"
                raise BackendFailed(what)
            yield Events(_wall(response.headers.get("Date")), _pieces(response, f"{member.node}: {path}"))

    @asynccontextmanager
    async def open_post(
        self, member: Member, path: str, *, headers: Sequence[Header], body: bytes
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Forward a request to a member's API; the answer's body is the caller's to read, with no time limit.

        `headers` hold neither framing nor hop-by-hop headers. X-Viiwork-Forwarded and -To are added here. Leaving the
        context before the body's end closes the connection, which cancels the work at the other end.
        """
        own = {FORWARDED.lower(), TO.lower()}
        sent = [(name, value) for name, value in headers if name.lower() not in own]
        sent += [(FORWARDED, self._node), (TO, member.node_id)]
        sent = await self._prove("POST", path, sent, body)
        # In chunks, since a large body in one piece blocks the loop.
        data = io.BytesIO(body) if len(body) > _BIG_BODY else body
        async with self._open("POST", f"http://{api_of(member)}{path}", sent, data) as response:
            yield response

    @asynccontextmanager
    async def open_put(
        self, address: str, path: str, *, headers: Sequence[Header], body: AsyncIterator[bytes], to: str | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Upload a stream to ip:port (or http://ip:port). The signature says "streamed" in place of a digest.

        `to` is the receiving member's node_id; with it the headers cannot be replayed to another member.
        """
        base = address if address.startswith("http://") else f"http://{address}"
        sent = [*headers, (TO, to)] if to else list(headers)
        if self._signer is None:
            sent.append((NODE, self._node))
        sent = await self._prove("PUT", path, sent, STREAMED)
        async with self._open("PUT", base.rstrip("/") + path, sent, body) as response:
            yield response

    @asynccontextmanager
    async def open_upgrade(
        self, address: str, path: str, protocol: str, *, to: str | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse | socket.socket]:
        """Ask ip:port to leave HTTP for `protocol`: the connection as a socket, or another answer than 101.

        Signed as `open_put`. The socket is closed at the block's end.
        """
        sent = [("Connection", "Upgrade"), ("Upgrade", protocol), *([(TO, to)] if to else [])]
        if self._signer is None:
            sent.append((NODE, self._node))
        sent = await self._prove("PUT", path, sent, STREAMED)
        async with self._open("PUT", f"http://{address}{path}", sent, None) as response:
            if response.status != SWITCHING:
                yield response
                return
            with taken(response, address) as connection:
                yield connection

    async def _prove(self, method: str, path: str, headers: list[Header], body: bytes | Digest) -> list[Header]:
        """`headers` and, in a secured mesh, their signature."""
        if self._signer is None:
            return headers
        if isinstance(body, bytes) and len(body) > _BIG_BODY:
            body = await asyncio.to_thread(digest, body)
        return [*headers, *self._signer.sign(method, path, headers, body)]

    def _open(
        self,
        method: str,
        url: str,
        headers: list[Header],
        data: bytes | io.BytesIO | AsyncIterator[bytes] | None,
        timeout: aiohttp.ClientTimeout | None = None,
    ) -> _Mapped:
        if self._opened is None:
            raise RuntimeError("the links are not open; use `async with`")
        # encoded: the target on the wire must be, byte for byte, the one that was signed.
        return _Mapped(
            self._opened.request(
                method,
                URL(url, encoded=True),
                headers=CIMultiDict(headers),
                data=data,
                allow_redirects=False,
                timeout=timeout or self._opened.timeout,
            ),
            f"{method} {url}",
        )


class _Mapped:
    """The answer to a request; only what fails before it is mapped, not what fails inside the caller's block.

    A class, as proxy/upstream's: every forward passes here.
    """

    __slots__ = ("_opening", "_response", "_what")

    def __init__(self, opening: Awaitable[aiohttp.ClientResponse], what: str) -> None:
        self._opening = opening
        self._what = what

    async def __aenter__(self) -> aiohttp.ClientResponse:
        try:
            self._response = await self._opening
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise BackendFailed(f"{self._what} failed: {_words(error)}") from error
        return self._response

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._response.__aexit__(kind, error, trace)


async def _pieces(response: aiohttp.ClientResponse, what: str) -> AsyncIterator[bytes]:
    try:
        async for piece in response.content.iter_any():
            yield piece
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        raise BackendFailed(f"{what} broke off: {_words(error)}") from error


async def _read_bounded(response: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_chunked(_READ):
        parts.append(part)
        size += len(part)
        if size > MAX_BYTES:
            raise BackendFailed(f"{response.method} {response.url} answered more than {MAX_BYTES} bytes")
    return b"".join(parts)


def body_of(answer: Answer, member: Member, path: str) -> bytes:
    """The body of a 200. Raises BackendFailed, with the member's own words, for anything else."""
    if answer.status != 200:
        raise BackendFailed(f"{member.node}: GET {path} answered {answer.status}{_reason(answer.body)}")
    return answer.body


def api_of(member: Member) -> str:
    """ip:port of a member's API."""
    host = f"[{member.host}]" if ":" in member.host else member.host
    return f"{host}:{member.api_port}"


def _wall(date: str | None) -> float | None:
    try:
        return None if date is None else parsedate_to_datetime(date[:64]).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


def _reason(body: bytes) -> str:
    """The other side's own words, if it gave any, fit for a log."""
    try:
        message = msgspec.json.decode(body, type=dict[str, dict[str, object]])["error"]["message"]
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError, RecursionError):
        return ""
    return ": " + "".join(filter(str.isprintable, str(message)))[:200]


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
