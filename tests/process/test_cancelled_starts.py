"""A start that is cancelled half way leaves no process."""

from __future__ import annotations

import asyncio
import os
import sys

import anyio
import psutil
import pytest

from viiwork_core.engines.process import LineSink, start_group

SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")


def children() -> set[int]:
    return {child.pid for child in psutil.Process(os.getpid()).children()}


async def started_and_ended() -> None:
    child = await start_group(SLEEP, {}, LineSink(lambda _: None))
    try:
        await anyio.sleep_forever()
    finally:
        child.kill()
        with anyio.CancelScope(shield=True):
            await child.end()


@pytest.mark.parametrize("turns", range(12))
def test_however_far_it_had_come(turns: int) -> None:
    """By a scope, which cancels again and again until it is left, as that of a backend which is not wanted any more."""
    before = children()

    async def scene() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(started_and_ended)
            for _ in range(turns):
                await asyncio.sleep(0)
            tasks.cancel_scope.cancel()

    asyncio.run(scene())
    assert children() == before
