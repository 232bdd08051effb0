"""What the end of a node waits for, and what it does not."""

from __future__ import annotations

import asyncio

from viiwork_core.node.background import Background

LONG = 60.0


def test_work_that_ends_is_waited_for() -> None:
    done: list[str] = []

    async def run() -> None:
        go = asyncio.Event()

        async def save() -> None:
            await go.wait()
            done.append("saved")

        async with Background(LONG) as background:
            background.start(save())
            asyncio.get_running_loop().call_later(0.01, go.set)

    asyncio.run(run())
    assert done == ["saved"]


def test_a_service_is_cancelled_at_once_but_not_before_the_work() -> None:
    order: list[str] = []

    async def run() -> None:
        async def service() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                order.append("service")

        async def save() -> None:
            await asyncio.sleep(0)
            order.append("saved")

        async with asyncio.timeout(LONG / 2), Background(LONG) as background:
            background.serve(service())
            background.start(save())

    asyncio.run(run())
    assert order == ["saved", "service"]


def test_work_that_takes_too_long_is_cancelled() -> None:
    ended: list[bool] = []

    async def run() -> None:
        async def endless() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.append(True)

        async with Background(0.01) as background:
            background.start(endless())
            await asyncio.sleep(0)

    asyncio.run(run())
    assert ended == [True]
