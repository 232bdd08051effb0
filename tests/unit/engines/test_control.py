"""Work on the control loop, and its end."""

from __future__ import annotations

import asyncio
import threading

import anyio
import pytest

from viiwork_core.engines.control import ControlLoop


def test_work_that_is_cancelled_is_over_when_it_has_ended() -> None:
    """Engines take their time to end, and what comes after them must wait for that."""
    begun, ending, may_end = threading.Event(), threading.Event(), threading.Event()
    said: list[str] = []

    async def work() -> None:
        try:
            begun.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                ending.set()
                await asyncio.to_thread(may_end.wait, 30)
                said.append("ended")

    async def scene() -> None:
        async with ControlLoop() as control:
            running = control.start(work())
            assert await asyncio.to_thread(begun.wait, 30)
            assert running.cancel()
            assert await asyncio.to_thread(ending.wait, 30)
            assert not running.done()
            may_end.set()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wrap_future(running)
            assert said == ["ended"]
            assert running.cancelled()
            assert not running.cancel()

    asyncio.run(scene())


def test_work_that_fails_says_so() -> None:
    async def work() -> None:
        raise ValueError("on purpose")

    async def scene() -> None:
        async with ControlLoop() as control:
            with pytest.raises(ValueError, match="on purpose"):
                await asyncio.wrap_future(control.start(work()))

    asyncio.run(scene())


def test_work_that_is_cancelled_before_it_begins_is_over() -> None:
    async def work() -> None:
        await anyio.sleep_forever()

    async def scene() -> None:
        async with ControlLoop() as control:
            running = control.start(work())
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asyncio.wait_for(asyncio.wrap_future(running), 30)
            assert running.done()

    asyncio.run(scene())
