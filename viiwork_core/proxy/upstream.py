"""The client for this machine's engines, on the data loop."""

from __future__ import annotations

import io
import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

import aiohttp

from viiwork_core.contracts.engine import Address
from viiwork_core.errors import BackendFailed
from viiwork_core.proxy.request import LARGE

CONNECT_S = 5.0
_NO_AUTO = ("Accept-Encoding", "User-Agent", "Accept", "Content-Type")
"""aiohttp adds none of these by itself: the client's own go through, and nothing is compressed."""


_connected: ContextVar[bool] = ContextVar("connected", default=False)
"""Whether the present request goes out over a connection that was made for it."""


class _Connector(aiohttp.TCPConnector):
    """Notes when it makes a connection. aiohttp's own tracing tells the reuse of one, and costs a request 6 %."""

    async def _create_connection(self, *arguments: Any, **named: Any) -> aiohttp.client_proto.ResponseHandler:
        _connected.set(True)
        return await super()._create_connection(*arguments, **named)


def _session(*, keep_alive: bool) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=_Connector(limit=0, force_close=not keep_alive),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
        # A server's cookie would go out with the next client's request.
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        trust_env=False,
        skip_auto_headers=_NO_AUTO,
    )


class Upstream:
    """Two connection pools: one that keeps connections, and one for engines that lose requests on kept ones."""

    def __init__(self) -> None:
        self._stack = AsyncExitStack()
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    async def __aenter__(self) -> Self:
        for keep_alive in (True, False):
            self._sessions[keep_alive] = await self._stack.enter_async_context(_session(keep_alive=keep_alive))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def post(
        self, address: Address, path: str, *, headers: list[tuple[str, str]], body: bytes, keep_alive: bool
    ) -> Sending:
        """An engine's answer, its body still to be read. Leaving early closes the connection, which the engine takes
        as the client's leaving. `async with` raises BackendFailed when no answer begins."""

        def send(*, kept: bool) -> Awaitable[aiohttp.ClientResponse]:
            # In chunks, since a large body in one piece blocks the loop.
            data = io.BytesIO(body) if len(body) > LARGE else body
            return self._sessions[kept].post(address.url + path, data=data, headers=headers, allow_redirects=False)

        return Sending(send, keep_alive=keep_alive)


class Sending:
    """A request on its way. A class, since a generator in its place takes twice the time."""

    __slots__ = ("_keep_alive", "_response", "_send")

    def __init__(self, send: Callable[..., Awaitable[aiohttp.ClientResponse]], *, keep_alive: bool) -> None:
        self._send = send
        self._keep_alive = keep_alive

    async def __aenter__(self) -> aiohttp.ClientResponse:
        _connected.set(False)
        try:
            try:
                self._response = await self._send(kept=self._keep_alive)
            except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
                # An engine may end a kept connection just as it is used again, which is no failure of its own.
                if _connected.get():
                    raise
                self._response = await self._send(kept=False)
        except (aiohttp.ClientError, OSError) as error:
            raise BackendFailed(f"the backend did not answer: {_words(error)}") from error
        return self._response

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # One that was read to its end has given its connection back.
        if not self._response.closed:
            self._response.close()


def _words(error: Exception) -> str:
    """What happened, for a client: without the address, and without quoting what came instead of an answer."""
    if isinstance(error, aiohttp.ClientResponseError):
        return "what it sent is not HTTP"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"it takes no connection ({os.strerror(error.os_error.errno or 0)})"
    return str(error) or type(error).__name__
