"""Connections: no more than there is room for, and those that their clients have closed are closed here too, at once.

Hypercorn stops a connection's idle timer only after the task group that the timer itself runs in. So a kept
connection that its client closes stays half open until the timer ends: 200 health checks of clients that close leave
200 sockets for the whole keep-alive time, and the process runs out of them.
"""

from __future__ import annotations

import asyncio
import resource
from contextlib import suppress
from functools import partial
from typing import Any, Final

import hypercorn.asyncio.run
from hypercorn.asyncio.tcp_server import TCPServer

from viiwork_core.errors import TooManyConnections
from viiwork_core.web.error_pages import error_body

MOST_FILES = 65_536
"""More would only slow down what has to walk over all of them."""

RESERVED_FILES: Final = 256
"""For engines, other nodes and files."""

REFUSING: Final = 256
"""Connections that are told at one time that there is no room. Beyond, they are closed without a word."""

LINGER_S: Final = 1.0
"""How long such a one may take to ask, and then to read the answer."""

RETRY_AFTER_S: Final = 5


class Limit:
    """How many connections there are, and may be."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.open = 0
        self.refusing = 0

    def refusal(self) -> bytes:
        """A whole HTTP answer."""
        what = f"the node has all of its {self.most} connections open"
        remedy = "close connections that are not used, try again, or raise api.max_connections"
        body = error_body(TooManyConnections(what, remedy=remedy))
        head = (
            f"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            f"retry-after: {RETRY_AFTER_S}\r\nconnection: close\r\n\r\n"
        )
        return head.encode() + body


class ClosingServer(TCPServer):
    """One connection. The timer ends with what there is to read."""

    def __init__(self, limit: Limit, *args: Any) -> None:
        super().__init__(*args)
        self._limit = limit

    async def run(self) -> None:
        """Serve it, or say that there is no room."""
        if self._limit.open >= self._limit.most:
            await self._refuse()
            return
        self._limit.open += 1
        try:
            await super().run()
        finally:
            self._limit.open -= 1

    async def _refuse(self) -> None:
        if self._limit.refusing >= REFUSING:
            self.writer.transport.abort()
            return
        self._limit.refusing += 1
        try:
            with suppress(OSError, TimeoutError):
                # A client looks for an answer once it has asked.
                await asyncio.wait_for(self.reader.read(1 << 16), LINGER_S)
            with suppress(OSError, TimeoutError):
                self.writer.write(self._limit.refusal())
                self.writer.write_eof()
                async with asyncio.timeout(LINGER_S):
                    # Closing on data that nobody read would destroy the answer.
                    while await self.reader.read(1 << 16):
                        pass
        finally:
            self._limit.refusing -= 1
            self.writer.transport.abort()

    async def _read_data(self) -> None:
        await super()._read_data()
        await self.idle_task.stop()


def close_with_the_client(most: int = MOST_FILES) -> None:
    """Make Hypercorn's server use ClosingServer, `most` at one time. It offers no other way to choose the class."""
    server: Any = hypercorn.asyncio.run
    server.TCPServer = partial(ClosingServer, Limit(most))


def allow_many_connections() -> int:
    """Raise the limit of open files to what this process may have: each idle client holds one. Returns how many
    connections that leaves room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    # RLIM_INFINITY is negative.
    return max(1, (max(soft, wanted) if soft >= 0 else MOST_FILES) - RESERVED_FILES)
