"""A node that tells what was recorded of a mesh of three, and then is silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

RECORDED = Path(__file__).parent / "recorded" / "mesh.sse"
WALL = 1796015949.0
"""When the recording ended: two requests run."""

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


@dataclass
class Teller:
    """Answers every request with the recording."""

    text: bytes
    asked: int = 0
    port: int = 0
    open: list[asyncio.StreamWriter] = field(default_factory=list)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.asked += 1
        writer.write(HEAD + self.text)
        await writer.drain()
        self.open.append(writer)

    def hang_up(self) -> None:
        """All connections end."""
        for writer in self.open:
            writer.close()
        self.open.clear()


@asynccontextmanager
async def telling(text: bytes | None = None) -> AsyncIterator[Teller]:
    teller = Teller(RECORDED.read_bytes() if text is None else text)
    server = await asyncio.start_server(teller.answer, "127.0.0.1", 0)
    teller.port = server.sockets[0].getsockname()[1]
    try:
        yield teller
    finally:
        teller.hang_up()
        server.close()
        await server.wait_closed()
