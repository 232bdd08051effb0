"""The engine plugin for plain_server.py, and a fleet that is watched. Also run by the node that a test kills."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio
import httpx

from viiwork_core import (
    Address,
    CommandOutput,
    Context,
    Engine,
    EngineRefused,
    EngineUnreachable,
    Launch,
    Load,
    NoOptions,
    Probe,
    Spec,
    Wire,
)
from viiwork_core.clock import SystemClock
from viiwork_core.engines.fleet import BackendPlan, Fleet, HealthSettings
from viiwork_core.engines.states import BackendState, BackendView
from viiwork_core.engines.surroundings import Cards

SERVER = Path(__file__).with_name("plain_server.py")
NODE = f"test-{os.getpid()}"
"""A node of this process alone: at its end a sitter ends all that runs for a node of that name."""

QUICK = HealthSettings(interval=0.2, timeout=2.0, max_failures=2, respawn_grace=0.0, max_respawns=1)


async def _no_command(argv: Sequence[str]) -> CommandOutput:
    raise EngineRefused("no commands in these tests")


async def _no_digest(path: Path) -> str:
    raise EngineRefused("no digests in these tests")


class PlainEngine(Engine):
    """Launches plain_server.py with `args`."""

    name = "plain"
    wire = Wire(endpoints=frozenset({"/v1/chat/completions"}))

    def __init__(self, *args: str, env: dict[str, str] | None = None) -> None:
        super().__init__(NoOptions(), Context("test", Path("/nowhere"), _no_command, _no_digest))
        self.args = args
        self.env = env or {}
        self.probes = 0
        self.loads = 0
        self.is_open = False

    async def __aenter__(self) -> Self:
        self.client = httpx.AsyncClient(trust_env=False)
        self.is_open = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.client.aclose()
        self.is_open = False

    def launch(self, spec: Spec) -> Launch | None:
        return Launch((sys.executable, str(SERVER), "--port", str(spec.port), *self.args, *spec.args), self.env)

    async def probe(self, address: Address) -> Probe:
        self.probes += 1
        body = await self._get(f"{address.url}/health")
        return Probe(body["ready"], reason=None if body["ready"] else "says it is not ready")

    async def load(self, spec: Spec, address: Address) -> Load:
        self.loads += 1
        body = await self._get(f"{address.url}/slots")
        return Load(slots=body["slots"], busy=0)

    async def _get(self, url: str) -> Any:
        try:
            return (await self.client.get(url)).json()
        except httpx.HTTPError as error:
            raise EngineUnreachable(f"{url} does not answer") from error


def plan(
    engine: Engine, *, model: str = "m", index: int = 0, startup_timeout: float = 20.0, **fields: Any
) -> BackendPlan:
    cache = fields.pop("cache", None)
    spec = Spec(model, index, fields.pop("backends", 1), None, 4096, 2, **fields)
    return BackendPlan(spec, engine, cache, startup_timeout)


@dataclass
class Watch:
    """Everything a fleet has published."""

    views: list[BackendView] = field(default_factory=list)
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, view: BackendView) -> None:
        self.views.append(view)
        self.news.set()

    def of(self, backend: str) -> list[BackendView]:
        return [view for view in self.views if view.id == backend]

    async def until(self, backend: str, wanted: Callable[[BackendView], bool], seconds: float = 30.0) -> BackendView:
        """The first view, from the newest one on, that is as wanted."""
        start = max((at for at, view in enumerate(self.views) if view.id == backend), default=len(self.views))
        with anyio.move_on_after(seconds):
            while not (found := [view for view in self.views[start:] if view.id == backend and wanted(view)]):
                self.news.clear()
                await self.news.wait()
            return found[0]
        raise AssertionError(f"{backend} never became as wanted; last seen: {self.of(backend)[-1:]}")

    async def until_state(self, backend: str, state: BackendState, seconds: float = 30.0) -> BackendView:
        return await self.until(backend, lambda view: view.state is state, seconds)


@asynccontextmanager
async def running(
    *plans: BackendPlan,
    publish: Callable[[BackendView], None],
    health: HealthSettings = QUICK,
    cards: Cards | None = None,
) -> AsyncIterator[Fleet]:
    """A fleet that runs inside the block and is cancelled at its end."""
    fleet = Fleet(plans, health=health, node_id=NODE, clock=SystemClock(), publish=publish, cards=cards)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(fleet.run)
        try:
            yield fleet
        finally:
            tasks.cancel_scope.cancel()
