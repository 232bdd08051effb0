"""How long a fleet waits for an engine: before its first request, and for its end."""

from __future__ import annotations

import asyncio

import pytest
from plain import PlainEngine, Watch, plan, running
from structlog.testing import capture_logs

from viiwork_core import Launch, Phase, Spec, WarmsUp
from viiwork_core.engines import process
from viiwork_core.engines.fleet import HealthSettings
from viiwork_core.engines.states import BackendState, BackendView

HEALTHY, DEAD, STOPPED = BackendState.HEALTHY, BackendState.DEAD, BackendState.STOPPED


class SlowToEnd(PlainEngine):
    """Wants more time for its end than others get."""

    stop_timeout = 30.0

    def launch(self, spec: Spec) -> Launch | None:
        launch = super().launch(spec)
        assert launch is not None
        line = " ".join(launch.argv)
        # The shell's own server runs beside it, so that the shell can take its time.
        script = f"trap 'sleep 1; echo ended; exit 0' TERM; {line} & while :; do sleep 0.05; done"
        return Launch(("/bin/sh", "-c", script))


def test_an_engine_has_the_time_that_it_needs_to_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "TERM_AFTER", 0.1)
    monkeypatch.setattr(process, "KILL_AFTER", 0.1)
    watch = Watch()

    async def scene() -> None:
        async with running(plan(SlowToEnd()), publish=watch.publish):
            await watch.until_state("m/0", HEALTHY)

    with capture_logs() as lines:
        asyncio.run(scene())
    assert "[m/0] ended" in [line["event"] for line in lines]


class Warm(PlainEngine, WarmsUp):
    """Is to be ready for a while before its first request."""

    def warm_up(self) -> float:
        return 0.5


def test_a_backend_warms_up_before_it_is_healthy() -> None:
    watch, engine = Watch(), Warm()

    async def scene() -> None:
        async with running(plan(engine), publish=watch.publish):
            await watch.until_state("m/0", HEALTHY)

    asyncio.run(scene())
    phases = list(dict.fromkeys(view.phase for view in watch.views if view.state is not STOPPED))
    assert phases[-3:] == [Phase.LOADING, Phase.WARMING_UP, None]
    assert engine.probes > 2


def test_a_warm_up_counts_against_the_startup_timeout() -> None:
    watch = Watch()

    async def scene() -> BackendView:
        health = HealthSettings(max_respawns=0)
        async with running(plan(Warm(), startup_timeout=0.3), publish=watch.publish, health=health):
            return await watch.until_state("m/0", DEAD)

    reason = asyncio.run(scene()).reason
    assert reason is not None
    assert reason.startswith("not ready within 0.3 s")
    assert HEALTHY not in [view.state for view in watch.views]
