"""A running fake engine with what a test asks of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from viiwork_core.contracts.engine import Spec
from viiwork_core.testing.conversation import Talk
from viiwork_core.testing.fake_plugin import FakeEngine, FakeOptions
from viiwork_core.testing.servers import Running, kit_context, launched

LIMIT = 20.0
SPEC = Spec(model="tiny", index=0, backends=1, path=None, context=4096, parallel=2)


@dataclass(frozen=True)
class FakeBackend:
    """A fake engine that runs."""

    process: Running
    talk: Talk
    http: httpx.AsyncClient
    """Its base_url is the engine's."""

    async def get(self, path: str) -> Any:
        """The JSON at `path`."""
        return (await self.http.get(path)).json()

    async def post(self, path: str, body: Any) -> httpx.Response:
        """Send `body` as JSON."""
        return await self.http.post(path, json=body)

    async def state(self) -> Any:
        """GET /fake/state: pid, active, completed, cancelled, refused, cut, and slots (id, busy, tokens, session)."""
        return await self.get("/fake/state")

    async def requests(self) -> Any:
        """GET /fake/requests: method, path, headers (lower-case names) and body of what it was asked, oldest first."""
        return await self.get("/fake/requests")

    async def counted(self, name: str, times: int) -> bool:
        """Whether a count of its state is `times`."""
        return bool((await self.state())[name] == times)

    async def busy(self, slot: int) -> bool:
        """Whether a slot works."""
        return bool((await self.state())["slots"][slot]["busy"])


@asynccontextmanager
async def fake_backend(folder: Path, *, spec: Spec = SPEC, **options: Any) -> AsyncIterator[FakeBackend]:
    """Run a fake engine with these FakeOptions. `folder` exists and is the test's own."""
    async with (
        FakeEngine(FakeOptions(**options), kit_context(folder)) as engine,
        launched(engine, spec) as process,
        httpx.AsyncClient(base_url=process.address.url, trust_env=False, timeout=LIMIT) as http,
    ):
        yield FakeBackend(process, Talk(process.spec, engine.wire, process.address), http)


async def until(condition: Callable[[], Awaitable[bool]], limit: float = LIMIT) -> None:
    """Ask until it is so. Raises TimeoutError after `limit` seconds."""
    async with asyncio.timeout(limit):
        while not await condition():  # noqa: ASYNC110  # another process's state
            await asyncio.sleep(0.01)
