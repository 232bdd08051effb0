"""Work that outlives the request that began it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from types import TracebackType
from typing import Any, Self

import structlog

_log = structlog.get_logger("viiwork.node")


class Background:
    """Starts tasks on the data loop. Leaving `async with` gives those that end time to do so, then cancels all.

    The time is the grace, once for all of them, however often it is waited for.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._tasks: set[asyncio.Task[None]] = set()
        self._services: set[asyncio.Task[None]] = set()
        self._until: float | None = None
        """Time of the loop at which the grace is over; None: nobody has waited yet."""

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work`, which ends by itself. One that raises is logged and harms no other."""
        self._run(work, self._tasks)

    def serve(self, work: Coroutine[Any, Any, None]) -> None:
        """Run `work` for as long as the node runs: its end is not waited for."""
        self._run(work, self._services)

    def _run(self, work: Coroutine[Any, Any, None], among: set[asyncio.Task[None]]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        among.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._services.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("background work failed", exc_info=error)

    async def settle(self) -> None:
        """Wait for what ends by itself, until the grace is over; then cancel it."""
        now = asyncio.get_running_loop().time()
        self._until = self._until or now + self._grace
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=max(0.0, self._until - now))
        await _cancelled(self._tasks)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            await self.settle()
        await _cancelled(self._tasks | self._services)


async def _cancelled(tasks: Iterable[asyncio.Task[None]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
