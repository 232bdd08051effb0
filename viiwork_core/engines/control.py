"""The control loop: a thread with an event loop of its own, where engines and plugins are spoken to.

A plugin that blocks for seconds stalls this loop and not the one that answers clients.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

import structlog

_log = structlog.get_logger("viiwork.node")

T = TypeVar("T")


class ControlLoop:
    """`async with` starts the thread and ends it; work that still runs then is cancelled and awaited."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._roots: set[Coroutine[Any, Any, Any]] = set()
        """What was started from outside. Everything else was started by one of these."""

        self._thread = threading.Thread(target=self._run, name="viiwork-control", daemon=True)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()

    async def __aenter__(self) -> Self:
        self._thread.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._cancel_all(), self._loop))
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)

    def start(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        """Run `work` there until it ends or the loop does. From any thread. What it raises is logged too."""
        begun = self._begin(work)
        begun.add_done_callback(_told)
        return begun

    async def call(self, make: Callable[[], Awaitable[T]]) -> T:
        """Await what `make` returns there, and return or raise as it does. Cancelling the wait cancels the work."""

        async def work() -> T:
            return await make()

        return await asyncio.wrap_future(self._begin(work()))

    def _begin(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        self._roots.add(work)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.add_done_callback(lambda _: self._roots.discard(work))
        return future

    async def _cancel_all(self) -> None:
        # The roots end what they have started in their own order. Cancelled by itself, a child that has not run yet
        # would never await what it was made for.
        await _cancel([task for task in asyncio.all_tasks() if task.get_coro() in self._roots])
        await _cancel(asyncio.all_tasks())


async def _cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    others = [task for task in tasks if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _told(work: Future[None]) -> None:
    """Nobody waits for what runs as long as the node: its failure must not wait for the node's end to be seen."""
    if not work.cancelled() and (error := work.exception()) is not None:
        _log.error("work on the control loop failed", exc_info=error)
