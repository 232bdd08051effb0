"""The control loop: a thread with an event loop of its own, where engines and plugins are spoken to.

A plugin that blocks for seconds stalls this loop and not the one that answers clients.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Coroutine
from concurrent.futures import Future
from contextlib import suppress
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
        """Run `work` there until it ends or the loop does. From any thread. What it raises is logged too.

        Cancelling what is returned asks the work to end; only when it has, it is done.
        """
        begun = _Work(self._loop)
        self._roots.add(work)
        begun.add_done_callback(lambda _: self._roots.discard(work))
        begun.add_done_callback(_told)
        self._loop.call_soon_threadsafe(begun.begin, work)
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


class _Work(Future[None]):
    """Work on another thread's loop. A plain future would be done at once when it is cancelled, and whoever waits for
    it would not wait for engines that take their time to end."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        self._task: asyncio.Task[None] | None = None

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """On the loop."""
        self._task = self._loop.create_task(work)
        self._task.add_done_callback(self._over)

    def cancel(self) -> bool:
        if self.done():
            return False
        self._loop.call_soon_threadsafe(self._cancel_task)
        return True

    def _cancel_task(self) -> None:
        assert self._task is not None, "it was begun before"
        self._task.cancel()

    def _over(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            super().cancel()
        elif (error := task.exception()) is not None:
            self.set_exception(error)
        else:
            self.set_result(None)


async def _cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    others = [task for task in tasks if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)


def _told(work: Future[None]) -> None:
    """Log a failure now: nobody awaits what runs as long as the node, so it would be seen at the node's end only."""
    if not work.cancelled() and (error := work.exception()) is not None:
        _log.error("work on the control loop failed", exc_info=error)


async def ended(work: Future[None]) -> None:
    """Cancel what runs on a control loop, and wait for its end."""
    work.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.wrap_future(work)
