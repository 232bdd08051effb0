"""The least that a relay on the node's server can do: a raw ASGI handler and an aiohttp client, and no more.

    python bench/bare_relay.py PORT BACKEND_URL

What it is faster by than the node is what the node's own work costs.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import hypercorn.asyncio
import hypercorn.config
import uvloop

PATH = "/v1/chat/completions"

Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class BareRelay:
    """The application."""

    def __init__(self, backend: str) -> None:
        self._url = backend + PATH
        self._client: aiohttp.ClientSession | None = None

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            assert self._client is not None
            await self._relay(self._client, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, auto_decompress=False, trust_env=False) as self._client:
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _relay(self, client: aiohttp.ClientSession, receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        async with client.post(self._url, data=body, headers={"content-type": "application/json"}) as answer:
            kind = (b"content-type", answer.headers["content-type"].encode())
            await send({"type": "http.response.start", "status": answer.status, "headers": [kind]})
            async for chunk in answer.content.iter_any():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def settings(port: int) -> hypercorn.config.Config:
    """Hypercorn as `viiwork serve` sets it, as far as it matters here."""
    server = hypercorn.config.Config()
    server.bind = [f"127.0.0.1:{port}"]
    server.loglevel = "WARNING"
    server.read_timeout = None
    server.keep_alive_timeout = 120
    server.keep_alive_max_requests = 1_000_000
    server.backlog = 2048
    server.h11_max_incomplete_size = 64 * 1024
    server.include_server_header = False
    return server


def main() -> None:
    """Serve until ended."""
    port, backend = sys.argv[1:]
    uvloop.run(hypercorn.asyncio.serve(BareRelay(backend), settings(int(port))))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
