"""Connections that write what is sent in one turn of the loop together, and have one task for all their pauses.

Hypercorn writes an answer's head, each piece of its body and its end apart, each with a system call, and makes and
cancels a task for the pause before each request. Both together cost a sixth of relaying a short answer. Nor has it a
limit for a request that has begun and does not come to its end.
"""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from typing import Any, Final, cast

import h11
from hypercorn.asyncio.tcp_server import TCPServer
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.typing import LifespanState

from viiwork_core.errors import InvalidRequest, RequestLate, UpgradeUnsupported
from viiwork_core.proxy.request import UPGRADE
from viiwork_core.web.error_pages import error_answer

GATHERED_MOST: Final = 64 * 1024
"""Bytes of one turn that are written together, at most."""

READ_MOST: Final = 256 * 1024
"""Bytes that are read together, at most: as many as uvloop has at a time. In smaller pieces, parsing costs an upload
more than copying it does."""

HEAD_S: Final = 10.0
"""How long a request's head may take from its first bytes on."""

UNREAD_S: Final = 5.0
"""How long a request may take to come to its end when the server stops."""


class _Upgraded:
    """What Hypercorn's protocol is to find in place of HTTP on a connection that has left it: the end."""

    they_are_waiting_for_100_continue = False

    def next_event(self) -> h11.Event:
        return h11.ConnectionClosed()


class GatheringServer(TCPServer):
    """One connection."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._gathered: list[bytes] = []
        self._size = 0
        self._idle_since: float | None = self.loop.time()
        """None: a request is being answered."""

        self._head_timer: asyncio.TimerHandle | None = None
        """Set while there is half a head."""

        self._closing: asyncio.Task[None] | None = None
        self.state = LifespanState({**self.state, UPGRADE: self.upgrade})

    async def upgrade(self) -> socket.socket:
        """Take the connection out of HTTP for the request that is being answered, as `proxy.request` has it.

        Hypercorn reads no further than the head of a request that asks for it, and knows of WebSockets only. Raises
        InvalidRequest where the client has not waited, since what was read is lost, and OSError where it has left.
        """
        protocol = self.protocol.protocol
        if not isinstance(protocol, H11Protocol):
            raise UpgradeUnsupported("HTTP/2 has no upgrade", remedy="use HTTP/1.1")
        if not self._waits():
            remedy = "send no body, and nothing else before the answer 101"
            raise InvalidRequest("the client has not waited for its connection to leave HTTP", remedy=remedy)
        taken = socket.socket(fileno=os.dup(self.writer.get_extra_info("socket").fileno()))
        protocol.connection = cast(h11.Connection, _Upgraded())
        self.writer.transport.abort()
        try:
            await self.protocol.handle(Closed())
            await protocol.can_read.set()
        except BaseException:
            taken.close()
            raise
        return taken

    def _waits(self) -> bool:
        """Whether the client has nothing more to say before it is answered, nor an earlier answer to read."""
        http = self._http_1()
        asked = h11.MIGHT_SWITCH_PROTOCOL  # type: ignore[attr-defined]  # documented, and not listed
        unread = self.reader._buffer  # type: ignore[attr-defined]  # what is public would wait for more
        if http is None or http.their_state is not asked:
            return False
        return not (http.trailing_data[0] or unread or self.writer.transport.get_write_buffer_size())

    async def protocol_send(self, event: Event) -> None:
        """Write bytes at the end of this turn; note where a pause begins and ends."""
        if isinstance(event, Updated):
            self._idle_since = self.loop.time() if event.idle else None
        elif not isinstance(event, RawData):
            await super().protocol_send(event)
        elif event.data:
            self._gather(event.data)
            try:
                # Waits when the client takes nothing, which was seen at an earlier write.
                await self.writer.drain()
            except (ConnectionError, RuntimeError):
                await self.protocol.handle(Closed())

    def _gather(self, data: bytes) -> None:
        if not self._gathered:
            self.loop.call_soon(self._write)
        self._gathered.append(data)
        self._size += len(data)
        if self._size > GATHERED_MOST:
            self._write()

    def _write(self) -> None:
        data, self._gathered, self._size = self._gathered, [], 0
        if data and not self.writer.is_closing():
            self.writer.write(b"".join(data))

    async def _read_data(self) -> None:
        try:
            while not self.reader.at_eof():
                data = await self.reader.read(READ_MOST)
                await self.protocol.handle(RawData(data))
                self._watch_head()
        except OSError:
            pass
        finally:
            self._forget_head()
        await self.protocol.handle(Closed())

    def _watch_head(self) -> None:
        """Called when all that has come was looked at: what is left in a pause is half a head."""
        if not self._half_a_head():
            self._forget_head()
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self._head_is_late)

    def _forget_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _half_a_head(self) -> bool:
        if self._idle_since is None or (connection := self._http_1()) is None:
            return False
        return bool(connection.trailing_data[0])

    def _half_a_body(self) -> bool:
        connection = self._http_1()
        return connection is not None and connection.their_state is h11.SEND_BODY

    def _http_1(self) -> h11.Connection | None:
        protocol = self.protocol.protocol
        connection = protocol.connection if isinstance(protocol, H11Protocol) else None
        return connection if isinstance(connection, h11.Connection) else None

    def _head_is_late(self) -> None:
        remedy = "send a request's head in one go"
        self._gather(error_answer(RequestLate(f"the head has not ended within {HEAD_S:g} seconds", remedy=remedy)))
        self._write()
        self._closing = self.loop.create_task(self._initiate_server_close())

    async def _close(self) -> None:
        self._write()
        await super()._close()

    async def _idle_timeout(self) -> None:
        """Close the connection after a long pause, or in any when the server stops."""
        limit = self.config.keep_alive_timeout
        while (pause := self._pause()) < limit:
            with suppress(TimeoutError):
                await asyncio.wait_for(self.context.terminated.wait(), limit - pause)
                break
        if self._half_a_body():
            await asyncio.sleep(UNREAD_S)
        if self._idle_since is not None or self._half_a_body():
            await asyncio.shield(self._initiate_server_close())
        # Else the server stops, and the end of the answer closes it.

    def _pause(self) -> float:
        return 0.0 if self._idle_since is None else self.loop.time() - self._idle_since
