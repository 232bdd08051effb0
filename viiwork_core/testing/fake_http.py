"""The HTTP/1.1 server under the fake engine: small, and exact about connections, which is what tests look at.

Standard library only, so that a fake engine starts fast. A client that goes away cancels the handler at once.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl, urlsplit

Gone = (ConnectionError, asyncio.IncompleteReadError)
"""What reading or writing raises when the client has left."""


@dataclass(frozen=True)
class Request:
    """One request, read to its end."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    """By lower-case name."""

    body: bytes


class Answer:
    """Writes the answer to one request: `send_json`, or `start_stream`, `send_event`... and `end_stream`; or `cut`."""

    def __init__(self, writer: asyncio.StreamWriter, *, old: bool) -> None:
        self._writer = writer
        self._old = old
        """HTTP/1.0: one request a connection, and a stream ends with the connection."""

        self.open = not old
        """False when the connection can carry no further request."""

    async def send_json(self, body: Any, status: int = 200) -> None:
        payload = json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
        self._head(status, "application/json; charset=utf-8", f"Content-Length: {len(payload)}")
        self._writer.write(payload)
        await self._writer.drain()

    async def start_stream(self) -> None:
        self._head(200, "text/event-stream", "Connection: close" if self._old else "Transfer-Encoding: chunked")
        await self._writer.drain()

    async def send_event(self, data: str) -> None:
        payload = f"data: {data}\n\n".encode()
        self._writer.write(payload if self._old else f"{len(payload):x}\r\n".encode() + payload + b"\r\n")
        await self._writer.drain()

    async def end_stream(self) -> None:
        if not self._old:
            self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def cut(self) -> None:
        """Break the connection off after what was written so far: no last chunk, no farewell."""
        await self._writer.drain()
        self._writer.close()
        self.open = False

    def _head(self, status: int, kind: str, framing: str) -> None:
        version = "HTTP/1.0" if self._old else "HTTP/1.1"
        start = f"{version} {status} {HTTPStatus(status).phrase}"
        self._writer.write(f"{start}\r\nServer: fake\r\nContent-Type: {kind}\r\n{framing}\r\n\r\n".encode())


Handler = Callable[[Request, Answer], Awaitable[None]]


async def serve(handler: Handler, host: str, port: int, *, old: bool = False) -> asyncio.Server:
    """Listen, and hand each request to `handler` with an Answer for it; `old`: speak HTTP/1.0."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(*Gone):
            await _Connection(handler, reader, writer, old=old).run()
        writer.close()

    return await asyncio.start_server(connected, host, port)


class _Connection:
    def __init__(
        self, handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, old: bool
    ) -> None:
        self._handler, self._reader, self._writer, self._old = handler, reader, writer, old
        self._ahead = b""

    async def run(self) -> None:
        while (request := await self._read_request()) is not None:
            answer = Answer(self._writer, old=self._old)
            await self._handle(request, answer)
            if not answer.open or request.headers.get("connection", "").lower() == "close":
                return

    async def _handle(self, request: Request, answer: Answer) -> None:
        """Run the handler, and cancel it when the client leaves. Raises ConnectionResetError then."""
        work = asyncio.ensure_future(self._handler(request, answer))
        watch = asyncio.ensure_future(self._reader.read(1))
        try:
            await asyncio.wait({work, watch}, return_when=asyncio.FIRST_COMPLETED)
            if watch.done() and not _first_byte(watch):
                work.cancel()
            await asyncio.wait({work})
        finally:
            work.cancel()
            watch.cancel()
            await asyncio.wait({work, watch})
        self._ahead = _first_byte(watch)
        if work.cancelled():
            raise ConnectionResetError
        work.result()

    async def _read_request(self) -> Request | None:
        head = self._ahead + await self._head()
        self._ahead = b""
        if not head:
            return None
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ", 2)
        pairs = (line.split(":", 1) for line in lines if ":" in line)
        headers = {name.strip().lower(): value.strip() for name, value in pairs}
        url = urlsplit(target)
        return Request(method, url.path, dict(parse_qsl(url.query)), headers, await self._body(headers))

    async def _head(self) -> bytes:
        try:
            return await self._reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return b""

    async def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding", "").lower() != "chunked":
            return await self._reader.readexactly(int(headers.get("content-length", "0")))
        body = b""
        while size := int((await self._reader.readline()).split(b";")[0], 16):
            body += await self._reader.readexactly(size)
            await self._reader.readline()
        await self._reader.readline()
        return body


def _first_byte(watch: asyncio.Future[bytes]) -> bytes:
    """The first byte of the client's next request; empty when there is none, or the client has left."""
    return b"" if watch.cancelled() or watch.exception() else watch.result()
