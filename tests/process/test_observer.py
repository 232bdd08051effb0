"""What goes wrong with the observer is not held against what it observes."""

from __future__ import annotations

import asyncio
import time

from plain import PlainEngine, Watch, plan, running
from structlog.testing import capture_logs

from viiwork_core import Address, Probe
from viiwork_core.engines.fleet import HealthSettings
from viiwork_core.engines.states import BackendState

HEALTH = HealthSettings(interval=0.1, timeout=0.5, max_failures=2, respawn_grace=0.0, max_respawns=1)
HEALTHY = BackendState.HEALTHY


class Overtaken(PlainEngine):
    """While its next probe is under way, if it is told so, somebody holds the loop: the answer lies there and waits."""

    blocks = 0.0

    async def probe(self, address: Address) -> Probe:
        seconds, self.blocks = self.blocks, 0.0
        if seconds:
            asyncio.get_running_loop().call_soon(time.sleep, seconds)
        return await super().probe(address)


def changes(watch: Watch, backend: str, since: int) -> list[BackendState]:
    return [view.state for view in watch.views[since:] if view.id == backend]


async def probed(engine: PlainEngine, times: int) -> None:
    """Wait for so many probes more."""
    wanted = engine.probes + times
    async with asyncio.timeout(20):
        while engine.probes < wanted:  # noqa: ASYNC110  # a count, not an event
            await asyncio.sleep(0.01)


def test_a_plugin_that_blocks_the_loop_makes_nobody_sick() -> None:
    watch, engine = Watch(), Overtaken()

    async def scene() -> list[BackendState]:
        async with running(plan(engine), publish=watch.publish, health=HEALTH):
            await watch.until_state("m/0", HEALTHY)
            since = len(watch.views)
            for _ in range(HEALTH.max_failures):
                engine.blocks = 3 * HEALTH.timeout
                await probed(engine, 2)
            return changes(watch, "m/0", since)

    with capture_logs():
        assert set(asyncio.run(scene())) <= {HEALTHY}
