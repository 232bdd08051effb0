"""Servers that answer, but not as an engine would: something else on the port, or an engine that lies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from viiwork_core.contracts.engine import Address

NEGATIVE = (
    b'{"slots": -1, "busy": -1, "waiting": -1, "context": -1, "running": -1, "queued": -1, "parallel": -1, '
    b'"n_ctx": -1, "status": "ok", "loaded": true}'
)
NEGATIVE_SLOT = b'[{"id": 0, "n_ctx": -1, "is_processing": true, "n_prompt_tokens": -1}]'

ODD_ANSWERS: tuple[tuple[str, int, bytes], ...] = (
    ("404 with text", 404, b"Not Found"),
    ("401 with JSON", 401, b'{"error": {"message": "who are you?"}}'),
    ("500 with nothing", 500, b""),
    ("503 with JSON that is no error object", 503, b"[1, 2]"),
    ("200 with nothing", 200, b""),
    ("200 with a page", 200, b"<html>hello</html>"),
    ("200 with bytes that are no text", 200, b"\xff\xfe\x00\x81"),
    ("200 with an empty object", 200, b"{}"),
    ("200 with an empty list", 200, b"[]"),
    ("200 with a list of null", 200, b"[null]"),
    ("200 with a number", 200, b"1"),
    ("200 with negative figures", 200, NEGATIVE),
    ("200 with a negative slot", 200, NEGATIVE_SLOT),
    ("200 with slots as text", 200, b'[{"id": "0", "n_ctx": "many", "is_processing": "yes"}]'),
)
"""Name, status and body."""


@asynccontextmanager
async def odd_server(status: int, content: bytes) -> AsyncIterator[Address]:
    """A server on a free port that gives every request the same answer and closes."""
    head = f"HTTP/1.1 {status} Odd\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            asked = await reader.readuntil(b"\r\n\r\n")
            length = next(
                (line[15:] for line in asked.lower().split(b"\r\n") if line.startswith(b"content-length:")), b"0"
            )
            await reader.readexactly(int(length))
            writer.write(head.encode() + content)
            await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield Address("127.0.0.1", server.sockets[0].getsockname()[1])
