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

from viiwork_core.cli.gathering import GatheringServer
from viiwork_core.errors import TooManyConnections
from viiwork_core.web.error_pages import error_answer

MOST_FILES = 65_536
"""More would only slow down what has to walk over all of them."""

REFUSING: Final = 64
"""Connections that are told at one time that there is no room. Beyond, they are closed without a word."""

OTHER_FILES: Final = 256
"""Open files for all else: listening sockets, pipes to engines, caches that are read or written, the questions to
engines and to other nodes."""

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
        return error_answer(TooManyConnections(what, remedy=remedy, retry_after=RETRY_AFTER_S))


class ClosingServer(GatheringServer):
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
    # RLIM_INFINITY is negative.
    if 0 <= soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return room(max(soft, wanted) if soft >= 0 else MOST_FILES)


def room(files: int) -> int:
    """How many connections so many open files are enough for. Each that asks has another one behind it, to an engine
    or to another node: a client that was let in is not to fail for want of that one."""
    return max(1, (files - REFUSING - OTHER_FILES) // 2)
