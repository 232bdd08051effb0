"""The load gate: turns in the order of joining, however late somebody joins."""

from __future__ import annotations

import asyncio

from viiwork_core.engines.drains import Drains
from viiwork_core.engines.gate import LoadGate


async def _settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_turns_follow_the_order_of_joining() -> None:
    async def scene() -> list[str]:
        gate, order = LoadGate(), list[str]()

        async def load(name: str, position: int) -> None:
            await gate.turn(position)
            order.append(name)

        first, second, third = gate.join(), gate.join(), gate.join()
        waiting = [asyncio.create_task(load(*one)) for one in (("c", third), ("b", second), ("a", first))]
        await _settled()
        assert order == ["a"]
        gate.leave(second)  # gives its turn up before it had one
        gate.leave(second)
        await _settled()
        assert order == ["a"]
        gate.leave(first)
        await asyncio.gather(*waiting)
        late = gate.join()
        waiting = [asyncio.create_task(load("late", late))]
        await _settled()
        assert "late" not in order
        gate.leave(third)
        await asyncio.gather(*waiting)
        return order

    order = asyncio.run(scene())
    assert sorted(order[1:3]) == ["b", "c"]
    assert order[3:] == ["late"]


def test_drains_are_over_when_the_last_is() -> None:
    async def scene() -> None:
        drains = Drains()
        await drains.over()
        drains.begin("a")
        drains.begin("a")
        waiting = asyncio.create_task(drains.over())
        await _settled()
        drains.end("a")
        drains.begin("b")  # before who waits has had a look
        await _settled()
        assert not waiting.done()
        drains.end("b")
        drains.end("b")
        await waiting

    asyncio.run(scene())
