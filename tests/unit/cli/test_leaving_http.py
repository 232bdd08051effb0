"""A connection that an application takes out of HTTP, on a real Hypercorn."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import hypercorn.asyncio
import hypercorn.config
import psutil
import pytest

from viiwork_core.cli.connections import ClosingServer, Limit
from viiwork_core.errors import ViiworkError
from viiwork_core.proxy.request import UPGRADE
from viiwork_core.web.error_pages import send_error

LENGTH = 60_000
"""Of an answer: more than the connections here hold, and less than a server waits for."""

GET = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"
LEAVE = b"GET /leave HTTP/1.1\r\nhost: here\r\nupgrade: echo\r\nconnection: upgrade\r\n\r\n"


class App:
    """Answers with LENGTH bytes, or leaves HTTP and sends everything back."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for what in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{what}.complete"})
        elif scope["path"] == "/leave":
            try:
                connection = await scope["state"][UPGRADE]()
            except ViiworkError as error:
                await send_error(send, error, request_id="r")
                return
            with connection:
                await asyncio.to_thread(echo, connection)
        else:
            headers = [(b"content-length", b"%d" % LENGTH)]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": bytes(LENGTH)})


def echo(connection: socket.socket) -> None:
    connection.settimeout(20)
    connection.sendall(b"left")
    while data := connection.recv(100):
        connection.sendall(data)


@asynccontextmanager
async def connected(monkeypatch: pytest.MonkeyPatch, limit: Limit) -> AsyncIterator[tuple[Any, Any]]:
    """A connection that holds little, to a server of its own, which is stopped with the block. All has 20 seconds."""
    monkeypatch.setattr(hypercorn.asyncio.run, "TCPServer", partial(ClosingServer, limit))
    listening, stop, config = socket.socket(), asyncio.Event(), hypercorn.config.Config()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    address = listening.getsockname()
    config.bind, config.errorlog, config.graceful_timeout = [f"fd://{listening.detach()}"], None, 20
    serve = hypercorn.asyncio.serve(App(), config, shutdown_trigger=stop.wait)  # type: ignore[arg-type]
    running = asyncio.create_task(serve)
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    try:
        async with asyncio.timeout(20):
            await asyncio.get_running_loop().sock_connect(client, address)
            reader, writer = await asyncio.open_connection(sock=client)
            # The stream would read ahead.
            writer.transport.pause_reading()
            yield reader, writer
            writer.close()
    finally:
        stop.set()
        async with asyncio.timeout(20):
            await running


def test_a_connection_that_leaves_http_counts_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        limit = Limit(5)
        async with connected(monkeypatch, limit) as (reader, writer):
            writer.transport.resume_reading()
            writer.write(LEAVE)
            assert await reader.readexactly(4) == b"left"
            writer.write(b"past HTTP")
            assert await reader.readexactly(9) == b"past HTTP"
            assert limit.open == 1
            writer.write_eof()
            assert await reader.read() == b""
        assert limit.open == 0

    before = psutil.Process().num_fds()
    asyncio.run(scene())
    assert psutil.Process().num_fds() <= before


def test_an_answer_that_is_still_being_sent_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        async with connected(monkeypatch, Limit(5)) as (reader, writer):
            writer.write(GET + LEAVE)
            for _ in range(100):  # turns of the loop that both requests take, while nobody reads
                await asyncio.sleep(0)
            writer.transport.resume_reading()
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
            assert await reader.readexactly(LENGTH) == bytes(LENGTH)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 400 ")

    asyncio.run(scene())


@pytest.mark.parametrize("early", [b"x", GET, b"x" * 200_000])
def test_what_comes_with_the_request_is_not_dropped(monkeypatch: pytest.MonkeyPatch, early: bytes) -> None:
    async def scene() -> None:
        async with connected(monkeypatch, Limit(5)) as (reader, writer):
            writer.transport.resume_reading()
            writer.write(LEAVE + early)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 400 ")

    asyncio.run(scene())
