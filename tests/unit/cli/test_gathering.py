"""On a real Hypercorn: what comes in pieces, what stops in the middle, and what waits."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import hypercorn.asyncio
import hypercorn.config
import pytest

from viiwork_core.cli import gathering
from viiwork_core.cli.connections import close_with_the_client
from viiwork_core.cli.unread import reading_to_the_end
from viiwork_core.engines.listener import free_port
from viiwork_core.errors import ViiworkError
from viiwork_core.proxy import request
from viiwork_core.proxy.request import ClientGone, read_body
from viiwork_core.web.error_pages import send_error

GET = b"GET / HTTP/1.1\r\nhost: here\r\n\r\n"
HALF_A_BODY = b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: 10\r\n\r\n12345"

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class App:
    """Answers with the body that it was sent, in two pieces."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for what in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{what}.complete"})
            return
        self.asked.set()
        try:
            body = await read_body(scope, receive, 1 << 20)
        except ClientGone:
            self.left.set()
            return
        except ViiworkError as error:
            await send_error(send, error, request_id="r")
            return
        await self.go.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body[:2], "more_body": True})
        await send({"type": "http.response.body", "body": body[2:]})


@pytest.fixture(autouse=True)
def _server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hypercorn.asyncio.run, "TCPServer", hypercorn.asyncio.run.TCPServer)
    close_with_the_client()


class Serving:
    def __init__(self, port: int, stop: asyncio.Event, running: asyncio.Task[None]) -> None:
        self.port, self.stop, self.running = port, stop, running

    @asynccontextmanager
    async def connected(self) -> AsyncIterator[Stream]:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0.01)
        try:
            yield reader, writer
        finally:
            writer.close()


@asynccontextmanager
async def serving(app: App, *, keep_alive: float = 600) -> AsyncIterator[Serving]:
    """Everything in the block has 20 seconds, and so has the stop."""
    port, stop = free_port(), asyncio.Event()
    config = hypercorn.config.Config()
    config.bind, config.errorlog, config.graceful_timeout = [f"127.0.0.1:{port}"], None, 60
    config.keep_alive_timeout = keep_alive  # type: ignore[assignment]  # any number of seconds
    running = asyncio.create_task(
        hypercorn.asyncio.serve(reading_to_the_end(app), config, shutdown_trigger=stop.wait)  # type: ignore[arg-type]
    )
    try:
        async with asyncio.timeout(20):
            yield Serving(port, stop, running)
    finally:
        stop.set()
        async with asyncio.timeout(20):
            await running


async def ok(reader: asyncio.StreamReader, body: bytes = b"") -> None:
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    assert await reader.readexactly(len(body)) == body


async def late(reader: asyncio.StreamReader) -> dict[str, str]:
    """The error with which the connection ends."""
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ")
    error: dict[str, str] = json.loads(body)["error"]
    assert (error["type"], error["code"], error["src"]) == ("invalid_request", "request_timeout", "viiwork")
    return error


def post(body: bytes) -> bytes:
    return b"POST / HTTP/1.1\r\nhost: here\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


@pytest.mark.parametrize("before", [b"", GET, post(b"abc")])
def test_half_a_head_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, before: bytes) -> None:
    """Also one that came right behind a whole request."""
    monkeypatch.setattr(gathering, "HEAD_S", 0.2)

    async def scene() -> None:
        async with serving(App()) as server, server.connected() as (reader, writer):
            writer.write(before + GET[:-2])
            if before:
                await ok(reader, b"abc" if before != GET else b"")
            assert "head" in (await late(reader))["message"]

    asyncio.run(scene())


def test_a_head_in_pieces_and_a_long_answer_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "HEAD_S", 0.3)

    async def scene() -> None:
        app = App()
        async with serving(app) as server, server.connected() as (reader, writer):
            app.go.clear()
            for byte in GET:
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
            await app.asked.wait()
            await asyncio.sleep(0.5)  # longer than a head may take, since that is the point
            app.go.set()
            await ok(reader)
            await asyncio.sleep(0.5)  # and so may a pause
            writer.write(GET)
            await ok(reader)

    asyncio.run(scene())


def test_a_body_of_which_nothing_more_comes_is_answered_and_the_connection_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At once: it is not waited for a second time before that."""
    monkeypatch.setattr(request, "SILENCE_S", 0.2)

    async def scene() -> None:
        async with serving(App()) as server, server.connected() as (reader, writer):
            writer.write(HALF_A_BODY)
            assert "body" in (await late(reader))["message"]

    asyncio.run(scene())


@pytest.mark.parametrize("text", [HALF_A_BODY, GET[:-2], b""])
def test_half_a_request_does_not_hold_up_a_stop(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(gathering, "UNREAD_S", 0.2)

    async def scene() -> None:
        app = App()
        async with serving(app) as server, server.connected() as (reader, writer):
            writer.write(text + b"")
            if text == HALF_A_BODY:
                await app.asked.wait()
            else:
                async with server.connected() as (other, asks):
                    asks.write(GET)
                    await ok(other)
            server.stop.set()
            assert await reader.read() == b""
            await server.running
            assert app.left.is_set() is (text == HALF_A_BODY)

    asyncio.run(scene())


def test_a_request_that_comes_to_its_end_during_a_stop_is_answered() -> None:
    async def scene() -> None:
        app = App()
        async with serving(app) as server, server.connected() as (reader, writer):
            writer.write(HALF_A_BODY)
            await app.asked.wait()
            server.stop.set()
            writer.write(b"67890")
            await ok(reader, b"1234567890")
            assert await reader.read() == b""

    asyncio.run(scene())


def test_a_long_pause_ends_a_connection_and_a_request_does_not() -> None:
    async def scene() -> None:
        app = App()
        async with serving(app, keep_alive=0.3) as server, server.connected() as (reader, writer):
            app.go.clear()
            writer.write(GET)
            await app.asked.wait()
            await asyncio.sleep(0.6)  # longer than a pause may be
            app.go.set()
            await ok(reader)
            assert await reader.read() == b""

    asyncio.run(scene())


def test_an_answer_goes_out_in_one_piece_and_a_large_one_whole() -> None:
    async def scene() -> None:
        async with serving(App()) as server, server.connected() as (reader, writer):
            writer.write(post(b"abcd"))
            answer = await reader.read(1 << 16)
            assert answer.endswith(b"\r\n\r\nabcd")
            large = bytes(range(256)) * 4000
            writer.write(post(large))
            await ok(reader, large)

    asyncio.run(scene())
