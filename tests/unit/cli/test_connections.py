"""A connection that its client closes is closed here too."""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import hypercorn.asyncio
import hypercorn.config
import psutil
import pytest

from viiwork_core.cli import connections
from viiwork_core.cli.connections import OTHER_FILES, REFUSING, allow_many_connections, close_with_the_client, room

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


# How many there is room for


@pytest.mark.parametrize("files", [0, 100, 321, 322, 1024, 4096, 20_000, 65_536])
def test_all_that_is_open_at_one_time_stays_below_the_limit(files: int) -> None:
    most = room(files)
    assert most >= 1
    used = 2 * most + REFUSING + OTHER_FILES
    assert used <= max(files, 2 + REFUSING + OTHER_FILES)
    assert used + 2 > files, "and it is used"


class Limits:
    """Stands in for the limits of this process."""

    RLIMIT_NOFILE = resource.RLIMIT_NOFILE
    RLIM_INFINITY = resource.RLIM_INFINITY

    def __init__(self, soft: int, hard: int) -> None:
        self.now = (soft, hard)

    def getrlimit(self, _what: int) -> tuple[int, int]:
        return self.now

    def setrlimit(self, _what: int, limits: tuple[int, int]) -> None:
        self.now = limits


@pytest.mark.parametrize(
    ("soft", "hard", "after", "files"),
    [
        (256, 1024, 1024, 1024),
        (1024, 1 << 20, 65_536, 65_536),
        (1 << 20, 1 << 20, 1 << 20, 1 << 20),
        (256, resource.RLIM_INFINITY, 65_536, 65_536),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, resource.RLIM_INFINITY, 65_536),
    ],
)
def test_the_limit_of_open_files_is_raised_as_far_as_it_may(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, after: int, files: int
) -> None:
    limits = Limits(soft, hard)
    monkeypatch.setattr(connections, "resource", limits)
    assert allow_many_connections() == room(files)
    assert limits.now == (after, hard)
