"""Comments that keep a stream alive until its first token.

Reading a long prompt takes minutes, and what stands between a client and the node takes a silent connection for dead.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, Final

from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.request import Send

EACH_S: Final = 5.0
"""Seconds from one comment to the next."""

COMMENT: Final = b": waiting for the first token\n\n"


class Comments:
    """Sends them from the moment at which a place is granted. While it waits for one, a client is told its place in
    line instead."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._telling: asyncio.Task[None] | None = None
        self._arm()

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(EACH_S, self._due)

    def _due(self) -> None:
        # A client that has not taken the last one needs no other.
        if _waits(self._exchange) and (self._telling is None or self._telling.done()):
            self._telling = asyncio.get_running_loop().create_task(self._tell())
        self._arm()

    async def _tell(self) -> None:
        with suppress(OSError):  # the client has left, which whoever serves it notices
            await self._exchange.tell(COMMENT)

    def stop(self) -> None:
        """The answer is over. A comment that is being sent is not broken off: it may carry the answer's head."""
        self._timer.cancel()


def _waits(exchange: Exchange) -> bool:
    placed = exchange.backend is not None or exchange.peer is not None
    return placed and exchange.first_byte_at is None and (exchange.streams or not exchange.started)


def in_turn(send: Send) -> Send:
    """`send` for two who send: one message after the other, since no server takes two at a time."""
    lock = asyncio.Lock()

    async def sending(message: MutableMapping[str, Any]) -> None:
        async with lock:
            await send(message)

    return sending
