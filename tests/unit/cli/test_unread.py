"""On a real Hypercorn: an application that answers before it has read all it was sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import hypercorn.asyncio
import hypercorn.config
import pytest

from viiwork_core.cli import unread
from viiwork_core.cli.unread import reading_to_the_end
from viiwork_core.engines.listener import free_port

LARGE = 4 << 20
BLOCK = bytes(1 << 16)


class Refusing:
    """Counts the requests that it has fully answered."""

    def __init__(self) -> None:
        self.answered = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for what in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{what}.complete"})
            return
        await receive()
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": b"no", "more_body": False})
        self.answered += 1


@asynccontextmanager
async def serving(app: Refusing) -> AsyncIterator[int]:
    port, stop = free_port(), asyncio.Event()
    config = hypercorn.config.Config()
    config.bind, config.errorlog, config.graceful_timeout = [f"127.0.0.1:{port}"], None, 60
    config.max_app_queue_size = 1  # full from the first block on
    running = asyncio.create_task(
        hypercorn.asyncio.serve(reading_to_the_end(app), config, shutdown_trigger=stop.wait)  # type: ignore[arg-type]
    )
    try:
        yield port
    finally:
        stop.set()
        async with asyncio.timeout(20):
            await running


Client = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def connected(port: int, client: Client) -> None:
    async with asyncio.timeout(20):
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)
        try:
            await client(reader, writer)
        finally:
            writer.close()


async def sending_for_ever(writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(BLOCK)
        await writer.drain()


def head(length: int) -> bytes:
    return b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % length


async def refused(reader: asyncio.StreamReader) -> None:
    answer = await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(2)
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert answer.endswith(b"\r\n\r\nno")


def test_the_rest_of_a_body_is_read_and_the_connection_goes_on() -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for length in (LARGE, LARGE, 0):
            writer.write(head(length) + bytes(length))
            await writer.drain()
            await refused(reader)

    async def run() -> None:
        app = Refusing()
        async with serving(app) as port:
            await connected(port, client)
        assert app.answered == 3

    asyncio.run(run())


def test_a_client_that_leaves_with_its_answer_holds_nothing_up() -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head(2 * LARGE) + bytes(LARGE))
        await refused(reader)

    async def run() -> None:
        app = Refusing()
        async with serving(app) as port:
            await connected(port, client)
        assert app.answered == 1

    asyncio.run(run())


def test_a_client_that_does_not_stop_sending_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(head(1 << 40) + bytes(LARGE))
        await refused(reader)
        with pytest.raises(ConnectionError):
            await sending_for_ever(writer)

    async def run() -> None:
        app = Refusing()
        async with serving(app) as port:
            await connected(port, client)
        assert app.answered == 1

    monkeypatch.setattr(unread, "LINGER_S", 0.2)
    asyncio.run(run())
