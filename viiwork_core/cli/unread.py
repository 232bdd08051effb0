"""Answers that end before the request's body was read, such as a refusal of a large upload.

Hypercorn hands a body to the application through a short queue, and puts one message more into it when the answer
ends. When nobody reads the rest of the body the queue is full by then: the last `send` never returns, the connection
is never closed, and a stop takes its whole grace. So what the client still sends is read here and dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import anyio

from viiwork_core.proxy.headers import first
from viiwork_core.proxy.request import Receive, Scope, Send

App = Callable[[Scope, Receive, Send], Awaitable[None]]

LINGER_S: Final = 30.0
"""How long a client that has its answer may go on sending before its connection is closed."""

_LATE: Final = 408
"""The answer to a client that has sent nothing for long already: it is not waited for again."""

_END: Final = {"type": "http.response.body", "body": b"", "more_body": False}


def reading_to_the_end(app: App) -> App:
    """`app`, for Hypercorn."""

    async def wrapped(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _has_body(scope):
            body = _Body(receive, send)
            await app(scope, body.receive, body.send)
        else:
            await app(scope, receive, send)

    return wrapped


def _has_body(scope: Scope) -> bool:
    length = first(scope["headers"], b"content-length")
    return length not in (None, "0") or first(scope["headers"], b"transfer-encoding") is not None


class _Body:
    """The body of one request, and the answer to it."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self._over = asyncio.Event()
        """Nothing more comes: it was read, or the client left."""

        self._linger = LINGER_S

    async def receive(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            self._over.set()
        return message

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start" and message["status"] == _LATE:
            self._linger = 0.0
        last = message["type"] == "http.response.body" and not message.get("more_body", False)
        if not last or self._over.is_set():
            await self._send(message)
            return
        # The client has all of the answer by this, and a well-behaved one stops sending.
        await self._send({**message, "more_body": True})
        reading = asyncio.create_task(self._rest())
        try:
            with anyio.move_on_after(self._linger):
                await self._over.wait()
            # Closes the connection if there is more to come. It is still being read, so that the queue has room.
            await self._send(dict(_END))
        finally:
            reading.cancel()

    async def _rest(self) -> None:
        while not self._over.is_set():
            await self.receive()
