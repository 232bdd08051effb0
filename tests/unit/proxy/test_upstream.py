"""The client for engines: a kept connection that ends just as it is used again is no failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from viiwork_core import Address
from viiwork_core.errors import BackendFailed
from viiwork_core.proxy.upstream import Upstream

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers the first `patience` requests of each connection, and closes it at the next one without a word."""

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self.connections = 0
        self.requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            for number in range(self.patience + 1):
                await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                if number < self.patience:
                    writer.write(ANSWER)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@asynccontextmanager
async def listening(server: Server) -> AsyncIterator[Address]:
    made = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    async with made:
        yield Address("127.0.0.1", made.sockets[0].getsockname()[1])


async def ask(upstream: Upstream, address: Address, *, keep_alive: bool = True) -> bytes:
    async with upstream.post(address, "/", headers=[], body=b"", keep_alive=keep_alive) as response:
        return await response.read()


def test_a_kept_connection_that_ends_is_replaced() -> None:
    async def main() -> None:
        server = Server(patience=1)
        async with listening(server) as address, Upstream() as upstream:
            assert [await ask(upstream, address) for _ in range(3)] == [b"ok"] * 3
        assert server.connections >= 2

    asyncio.run(main())


@pytest.mark.parametrize("keep_alive", [True, False])
def test_one_that_never_answers_has_failed(keep_alive: bool) -> None:
    async def main() -> None:
        server = Server(patience=0)
        async with listening(server) as address, Upstream() as upstream:
            with pytest.raises(BackendFailed):
                await ask(upstream, address, keep_alive=keep_alive)
        assert server.requests == 1, "the connection was a new one"

    asyncio.run(main())


def test_a_new_connection_is_tried_once_in_place_of_a_kept_one() -> None:
    async def main() -> None:
        server = Server(patience=1)
        async with listening(server) as address, Upstream() as upstream:
            assert await ask(upstream, address) == b"ok"
            server.patience = 0
            with pytest.raises(BackendFailed):
                await ask(upstream, address)
        assert server.connections == 2

    asyncio.run(main())


def test_who_takes_no_connection_has_failed_at_once() -> None:
    async def main() -> None:
        server = Server(patience=1)
        async with listening(server) as address:
            gone = address
        async with Upstream() as upstream:
            with pytest.raises(BackendFailed, match="takes no connection"):
                await ask(upstream, gone)

    asyncio.run(main())
