"""What the end of a node waits for, and what it does not."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

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


def test_what_is_stuck_is_over_before_what_it_stands_on_closes_and_is_not_waited_for_again() -> None:
    order: list[str] = []

    async def run() -> None:
        async def stuck(name: str) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                order.append(name)

        async with asyncio.timeout(LONG / 2):
            background = Background(0.01)
            async with background, AsyncExitStack() as stack:
                stack.callback(order.append, "links")
                stack.push_async_callback(background.settle)
                background.start(stuck("first"))
                await asyncio.sleep(0)
            waited = background._until
            background.start(stuck("second"))
            await asyncio.sleep(0)
            await background.settle()
            assert background._until == waited, "the grace is one"

    asyncio.run(run())
    assert order == ["first", "links", "second"]
