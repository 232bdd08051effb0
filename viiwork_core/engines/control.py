"""The control loop: a thread with an event loop of its own, where engines and plugins are spoken to.

A plugin that blocks for seconds stalls this loop and not the one that answers clients.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")


class ControlLoop:
    """`async with` starts the thread and ends it; work that still runs then is cancelled and awaited."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
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
        await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_cancel_all(), self._loop))
        self._loop.call_soon_threadsafe(self._loop.stop)
        await asyncio.to_thread(self._thread.join)

    def start(self, work: Coroutine[Any, Any, None]) -> Future[None]:
        """Run `work` there until it ends or the loop does. From any thread."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def call(self, make: Callable[[], Awaitable[T]]) -> T:
        """Await what `make` returns there, and return or raise as it does. Cancelling the wait cancels the work."""

        async def work() -> T:
            return await make()

        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work(), self._loop))


async def _cancel_all() -> None:
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
