"""The plugin objects that backends use, each opened for its first user and closed after its last."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import anyio
import structlog

from viiwork_core.clock import Clock
from viiwork_core.engines.calls import CacheCalls, EngineCalls, told
from viiwork_core.engines.plan import BackendPlan
from viiwork_core.errors import ViiworkError

_log = structlog.get_logger("viiwork.engines")

C = TypeVar("C", EngineCalls, CacheCalls)


@dataclass(frozen=True, slots=True)
class Tools:
    """What a supervisor speaks to its backend with."""

    engine: EngineCalls
    cache: CacheCalls | None
    """None also where it could not be opened: that costs only the sharing."""

    refused: str
    """Why the engine could not be opened, or nothing."""


@dataclass
class _Object(Generic[C]):
    calls: C
    users: int = 0
    opened: bool = False
    failure: str = ""
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def open(self) -> None:
        """Once, for the first user. A failure is kept until nobody uses the object any more."""
        async with self.turn:
            if self.opened or self.failure:
                return
            try:
                await self.calls.open()
                self.opened = True
            except ViiworkError as error:
                self.failure = told(error)
                _log.error("a plugin cannot be opened", plugin=self.calls.name, reason=self.failure)

    async def close(self) -> None:
        if self.opened:
            self.opened = False
            try:
                await self.calls.close()
            except ViiworkError as error:
                _log.warning("a plugin did not close", plugin=self.calls.name, reason=told(error))


class Opened:
    """Objects are told apart by identity: the backends of a model share theirs. On the control loop."""

    def __init__(self, *, clock: Clock, timeout: float) -> None:
        self._clock = clock
        self._timeout = timeout
        self._engines: dict[int, _Object[EngineCalls]] = {}
        self._caches: dict[int, _Object[CacheCalls]] = {}

    @asynccontextmanager
    async def tools(self, plan: BackendPlan) -> AsyncIterator[Tools]:
        """The open objects of a plan, for the length of the block. Never raises what a plugin raised."""
        engine, cache = plan.engine, plan.cache
        async with _held(self._engines, id(engine), self._engine(plan)) as calls:
            if cache is None:
                yield Tools(calls.calls, None, calls.failure)
                return
            async with _held(self._caches, id(cache), lambda: CacheCalls(cache, clock=self._clock)) as moving:
                yield Tools(calls.calls, moving.calls if moving.opened else None, calls.failure)

    def _engine(self, plan: BackendPlan) -> Callable[[], EngineCalls]:
        return lambda: EngineCalls(plan.engine, clock=self._clock, timeout=self._timeout)


@asynccontextmanager
async def _held(objects: dict[int, _Object[C]], key: int, make: Callable[[], C]) -> AsyncIterator[_Object[C]]:
    one = objects[key] if key in objects else objects.setdefault(key, _Object(make()))
    one.users += 1
    try:
        await one.open()
        yield one
    finally:
        one.users -= 1
        if not one.users:
            del objects[key]
            with anyio.CancelScope(shield=True):
                await one.close()
