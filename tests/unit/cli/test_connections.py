"""A connection that its client closes is closed here too."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import hypercorn.asyncio
import hypercorn.config
import psutil
import pytest

from viiwork_core.cli.connections import close_with_the_client

CONNECTIONS = 20


async def _app(scope: dict[str, Any], receive: object, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})


def _half_open() -> int:
    return sum(c.status == psutil.CONN_CLOSE_WAIT for c in psutil.Process().net_connections("tcp"))


async def _until(condition: Callable[[], bool]) -> bool:
    for _ in range(200):
        if condition():
            return True
        await asyncio.sleep(0.02)
    return False


def test_clients_that_close_leave_no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hypercorn.asyncio.run, "TCPServer", hypercorn.asyncio.run.TCPServer)
    close_with_the_client()
    asyncio.run(_scene())


async def _scene() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen(CONNECTIONS)
        address = listening.getsockname()
        config = hypercorn.config.Config()
        config.bind = [f"fd://{listening.detach()}"]
        config.keep_alive_timeout = 600
    stop = asyncio.Event()
    serving = asyncio.create_task(hypercorn.asyncio.serve(_app, config, shutdown_trigger=stop.wait))  # type: ignore[arg-type]  # hypercorn's own types
    try:
        for _ in range(CONNECTIONS):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"GET / HTTP/1.1\r\nhost: here\r\n\r\n")
            assert (await reader.readuntil(b"ok")).startswith(b"HTTP/1.1 200")
            writer.close()
            await writer.wait_closed()
        assert await _until(lambda: _half_open() == 0), f"{_half_open()} of {CONNECTIONS} are still half open"
    finally:
        stop.set()
        await serving
