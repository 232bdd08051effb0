"""The last hour: bounded, oldest first, and without figures that nobody knows."""

from __future__ import annotations

import asyncio

import msgspec

from viiwork_core.contracts.engine import Vendor
from viiwork_core.engines.gpus.gpu import Gpu
from viiwork_core.node.history import KEPT, CardSample, History, Sample


def samples() -> History:
    numbers = iter(range(10**6))
    return History(lambda: Sample(t=next(numbers), slots=2, busy=1, queued=0, host_mem_used_mb=5), interval_s=0.001)


def test_the_oldest_goes_first() -> None:
    history = samples()
    assert history.newest() is None
    for _ in range(KEPT + 40):
        history.add()
    told = history.told()
    assert [one.t for one in told["samples"]] == list(range(40, KEPT + 40))
    assert history.newest() == told["samples"][-1]


def test_it_looks_each_interval_until_cancelled() -> None:
    async def scene() -> None:
        history = samples()
        work = asyncio.create_task(history.run())
        async with asyncio.timeout(10):
            while len(history.told()["samples"]) < 3:  # noqa: ASYNC110  # a condition, polled
                await asyncio.sleep(0.001)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        assert work.cancelled()

    asyncio.run(scene())


def test_what_a_card_does_not_tell_is_absent() -> None:
    silent = CardSample.of(Gpu(index=1, vendor=Vendor.AMD))
    assert msgspec.to_builtins(silent) == {"index": 1}
    telling = CardSample.of(Gpu(index=0, vendor=Vendor.AMD, memory_used=7, utilisation=0.0, power=30.5))
    assert msgspec.to_builtins(telling) == {"index": 0, "util": 0.0, "vram_used_mb": 7, "power_w": 30.5}
