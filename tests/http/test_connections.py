"""Connections: what clients of all kinds do with one."""

from __future__ import annotations

import asyncio
import json
import re

import h2.config
import h2.connection
import h2.events
import h2.exceptions
import pytest
from http_node import CHAT, Answer, Client, Node, chat, connected, script, soon, streamed

WORD = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


async def turn(client: Client, body: bytes) -> Answer:
    async with asyncio.timeout(10):
        await client.ask(body)
        return await client.read(await client.answer())


def test_one_connection_serves_many_requests_of_all_kinds(node: Node) -> None:
    async def scene() -> None:
        async with connected(node) as client:
            for number in range(50):
                stream = number % 2 == 0
                answer = await turn(client, chat("scripted", streamed(WORD, DONE) if stream else None, stream=stream))
                assert (answer.status, answer.broken) == (200, False)
                assert answer.headers["x-viiwork-queued-ms"] == "0"

    asyncio.run(scene())


@pytest.mark.parametrize(("kind", "kept"), [("scripted", True), ("scripted-done", False)])
def test_the_connection_to_the_engine_is_kept_where_the_engine_keeps_it(node: Node, kind: str, kept: bool) -> None:
    async def scene() -> None:
        async with connected(node) as client:
            for _ in range(5):
                assert (await turn(client, chat(kind))).status == 200

    asyncio.run(scene())
    # Tests before this one may have left several in the pool, which are used in turn.
    assert (len({one["from"] for one in node.engine(kind).seen()[-5:]}) < 5) is kept


def test_the_next_request_may_follow_a_stream_s_end_at_once(node: Node) -> None:
    async def scene() -> None:
        async with connected(node) as client:
            for _ in range(20):
                answer = await turn(client, chat("scripted", streamed(WORD, DONE), stream=True))
                assert answer.body == WORD + DONE
                answer = await turn(client, chat("scripted"))
                assert (answer.status, answer.headers["x-viiwork-queued-ms"]) == (200, "0")

    asyncio.run(scene())


def test_a_connection_outlives_refusals(node: Node) -> None:
    async def scene() -> None:
        async with connected(node) as client:
            for body in (b"nonsense", b"{}", chat("unknown"), chat("scripted", script(("json", 400, "{}")))):
                assert (await turn(client, body)).status in (400, 404)
                assert (await turn(client, chat("scripted"))).status == 200

    asyncio.run(scene())


def test_requests_sent_ahead_are_answered_in_turn(node: Node) -> None:
    async def scene() -> None:
        async with asyncio.timeout(10), connected(node) as client:
            for number in range(5):
                await client.ask(chat("scripted", script(("json", 200, str(number)))))
            bodies = [(await client.read(await client.answer())).body for _ in range(5)]
            assert bodies == [b"0", b"1", b"2", b"3", b"4"]

    asyncio.run(scene())


def test_a_client_that_sends_its_request_byte_by_byte(node: Node) -> None:
    async def scene() -> None:
        body = chat("scripted")
        head = f"POST {CHAT} HTTP/1.1\r\nHost: node\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        async with asyncio.timeout(10), connected(node) as client:
            for byte in head + body:
                await client.send(bytes([byte]))
            assert (await client.read(await client.answer())).status == 200

    asyncio.run(scene())


def test_a_body_in_chunks(node: Node) -> None:
    async def scene() -> None:
        body = chat("scripted-plain")
        parts = b"".join(b"%x\r\n%b\r\n" % (len(one), one) for one in (body[:7], body[7:])) + b"0\r\n\r\n"
        async with asyncio.timeout(10), connected(node) as client:
            await client.send(f"POST {CHAT} HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            await client.send(parts)
            assert (await client.read(await client.answer())).status == 200

    asyncio.run(scene())
    sent = dict(node.engine("scripted-plain").seen()[-1]["headers"])
    assert sent["content-length"] == str(len(chat("scripted-plain")))
    assert "transfer-encoding" not in sent


def test_a_client_that_asks_whether_to_go_on(node: Node) -> None:
    async def scene() -> None:
        body = chat("scripted")
        head = f"POST {CHAT} HTTP/1.1\r\nHost: node\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
        async with asyncio.timeout(10), connected(node) as client:
            await client.send(head.encode())
            assert (await client.reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            await client.send(body)
            assert (await client.read(await client.answer())).status == 200

    asyncio.run(scene())
    assert "expect" not in dict(node.engine("scripted").seen()[-1]["headers"])


@pytest.mark.parametrize("keep", [True, False])
def test_an_http_1_0_client(node: Node, keep: bool) -> None:
    async def scene() -> bytes:
        body = chat("scripted")
        kept = "Connection: keep-alive\r\n" if keep else ""
        head = f"POST {CHAT} HTTP/1.0\r\n{kept}Content-Length: {len(body)}\r\n\r\n"
        async with asyncio.timeout(10), connected(node) as client:
            await client.send(head.encode() + body)
            return await client.reader.read() if not keep else await client.reader.readuntil(b"}}}")

    said = asyncio.run(scene())
    head, _, text = said.partition(b"\r\n\r\n")
    assert re.match(rb"HTTP/1\.[01] 200 ", head)
    assert json.loads(text)["object"] == "chat.completion"


# HTTP/2 without TLS, for a client that knows that the server speaks it


class Client2:
    """One connection that speaks HTTP/2 from its first byte."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.http = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))

    async def flush(self) -> None:
        await self.client.send(self.http.data_to_send())

    async def ask(self, body: bytes) -> int:
        if not self.http.streams:
            self.http.initiate_connection()
        stream = self.http.get_next_available_stream_id()
        head = [(":method", "POST"), (":path", CHAT), (":scheme", "http"), (":authority", "node")]
        self.http.send_headers(stream, head)
        self.http.send_data(stream, body, end_stream=True)
        await self.flush()
        return stream

    async def events(self) -> list[h2.events.Event]:
        data = await self.client.reader.read(1 << 16)
        events = self.http.receive_data(data) if data else [h2.events.ConnectionTerminated()]
        await self.flush()
        return events


async def answered(client: Client2) -> tuple[bytes, type[h2.events.Event]]:
    """A body, and how it ended."""
    body = b""
    while True:
        for event in await client.events():
            if isinstance(event, h2.events.DataReceived):
                body += event.data
            elif isinstance(event, (h2.events.StreamEnded, h2.events.StreamReset, h2.events.ConnectionTerminated)):
                return body, type(event)


def test_an_http_2_client_gets_its_answers(node: Node) -> None:
    async def scene() -> None:
        async with asyncio.timeout(10), connected(node) as raw:
            client = Client2(raw)
            for _ in range(3):
                await client.ask(chat("scripted", streamed(WORD, DONE), stream=True))
                assert await answered(client) == (WORD + DONE, h2.events.StreamEnded)

    asyncio.run(scene())


def test_an_http_2_client_sees_a_cut(node: Node) -> None:
    async def scene() -> None:
        async with asyncio.timeout(10), connected(node) as raw:
            client = Client2(raw)
            await client.ask(chat("scripted", streamed(WORD, end=False), stream=True))
            body, end = await answered(client)
            assert end is not h2.events.StreamEnded or b'"answer_cut"' in body
            assert b"[DONE]" not in body
            head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
            await client.ask(chat("scripted", script(("raw", head), ("cut",))))
            with pytest.raises(h2.exceptions.InvalidBodyLengthError):
                await answered(client)

    asyncio.run(scene())


@pytest.mark.parametrize("how", ["reset", "close"])
def test_an_http_2_client_that_leaves(node: Node, how: str) -> None:
    async def scene() -> None:
        async with asyncio.timeout(10), connected(node) as raw:
            client = Client2(raw)
            before = len(node.engine("scripted").seen())
            stream = await client.ask(chat("scripted", script(("hold",))))
            await soon(lambda: len(node.engine("scripted").seen()) > before, "the engine has it")
            if how == "reset":
                client.http.reset_stream(stream)
                await client.flush()
            else:
                raw.leave()
            await soon(lambda: node.engine("scripted").seen()[-1]["left"] is not None, "the engine sees it leave", 2)

    asyncio.run(scene())
