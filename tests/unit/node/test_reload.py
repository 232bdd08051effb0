"""What goes wrong in one reload does not end the listening for the next."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from viiwork_core import NoOptions
from viiwork_core.builtin.policies import LeastBusy
from viiwork_core.config.load import parse_config
from viiwork_core.config.schema import Config
from viiwork_core.engines.bell import Bell
from viiwork_core.errors import ConfigError
from viiwork_core.node.models import Changes
from viiwork_core.node.reload import Reload
from viiwork_core.registry.options import Resolved, ResolvedModel


@pytest.mark.parametrize("failure", [ConfigError("no"), RuntimeError("a plugin's mistake")])
def test_the_next_ring_is_heard_after_any_failure(failure: Exception) -> None:
    config = parse_config("mesh: {network: none}", {}, origin="test")
    bell, tried, heard = Bell(), list[int](), asyncio.Event()

    def read() -> tuple[Config, Resolved]:
        tried.append(1)
        if len(tried) == 1:
            raise failure
        return config, Resolved((), LeastBusy, NoOptions(), ())

    async def apply(models: Sequence[ResolvedModel]) -> Changes:
        return Changes((), (), (), ())

    async def scene() -> None:
        reload = asyncio.create_task(Reload(bell, read).run(config, apply, lambda _: heard.set()))
        bell.ring()
        while not tried:  # noqa: ASYNC110  # a thread sets no event
            await asyncio.sleep(0.002)
        bell.ring()
        async with asyncio.timeout(10):
            await heard.wait()
        reload.cancel()
        await asyncio.wait([reload])

    asyncio.run(scene())
    assert len(tried) == 2
