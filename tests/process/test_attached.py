"""Backends whose servers nobody here has started: they are waited for, and never given up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from plain import PlainEngine, Watch, plan, running

from viiwork_core import Address, Attaches, Launch, Load, Spec
from viiwork_core.engines.fleet import BackendPlan
from viiwork_core.engines.listener import free_port
from viiwork_core.engines.states import BackendState, BackendView

HEALTHY, STARTING, UNHEALTHY = BackendState.HEALTHY, BackendState.STARTING, BackendState.UNHEALTHY


class Silent(PlainEngine, Attaches):
    """Has no figure of what is busy."""

    def __init__(self, *addresses: Address) -> None:
        super().__init__()
        self.known = addresses

    def addresses(self) -> tuple[Address, ...]:
        return self.known

    def launch(self, spec: Spec) -> Launch | None:
        return None

    async def load(self, spec: Spec, address: Address) -> Load:
        return Load(slots=spec.parallel, busy=None)


def attached(engine: Silent, *, startup_timeout: float = 20.0) -> BackendPlan:
    return replace(plan(engine, startup_timeout=startup_timeout), address=engine.known[0])


@asynccontextmanager
async def server(address: Address) -> AsyncIterator[None]:
    """A server that is ready, and gone at the end of the block."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 15\r\n\r\n{"ready": true}')
        writer.close()

    async with await asyncio.start_server(answer, address.host, address.port):
        yield


def test_a_server_that_is_late_is_waited_for_beyond_the_startup_timeout() -> None:
    address, watch = Address("127.0.0.1", free_port()), Watch()
    engine = Silent(address)

    async def scene() -> tuple[BackendView, BackendView]:
        async with running(attached(engine, startup_timeout=0.1), publish=watch.publish):
            away = await watch.until("m/0", lambda view: view.reason is not None)
            while engine.probes < 5:  # noqa: ASYNC110  # asked by another task, after ever longer pauses
                await asyncio.sleep(0.01)
            async with server(address):
                return away, await watch.until("m/0", lambda view: view.load is not None)

    away, there = asyncio.run(scene())
    assert (away.state, away.address) == (STARTING, address)
    assert away.reason is not None
    assert "does not answer" in away.reason
    assert (there.state, there.pid, there.address, there.respawns, there.incarnation) == (HEALTHY, None, address, 0, 1)
    assert BackendState.DEAD not in {view.state for view in watch.views}


def test_a_server_that_goes_and_comes_keeps_what_only_the_book_counts() -> None:
    address, watch = Address("127.0.0.1", free_port()), Watch()

    async def scene() -> list[BackendView]:
        async with running(attached(Silent(address)), publish=watch.publish):
            async with server(address):
                first = await watch.until("m/0", lambda view: view.load is not None)
            away = await watch.until_state("m/0", UNHEALTHY)
            async with server(address):
                return [first, away, await watch.until_state("m/0", HEALTHY)]

    views = asyncio.run(scene())
    assert [view.state for view in views] == [HEALTHY, UNHEALTHY, HEALTHY]
    # Another incarnation would void the reservations of requests that run on, say through one slow answer to a probe.
    assert {view.incarnation for view in views} == {1}
    assert {view.load for view in views} == {Load(slots=2, busy=None)}
