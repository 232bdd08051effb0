"""A fleet that is told something else while it runs, over real processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import anyio
import psutil
from plain import NODE, QUICK, PlainEngine, Watch, plan, running
from structlog.testing import capture_logs

from viiwork_core.clock import SystemClock
from viiwork_core.engines.fleet import BackendPlan, Fleet, HealthSettings
from viiwork_core.engines.states import BackendState, BackendView

HEALTHY, DRAINING, PARKED, STOPPED = (
    BackendState.HEALTHY,
    BackendState.DRAINING,
    BackendState.PARKED,
    BackendState.STOPPED,
)
PATIENT = HealthSettings(interval=0.2, timeout=20.0, max_failures=50, respawn_grace=60.0, max_respawns=1)


class Traffic(Watch):
    """What the node would know: who was published, who is gone, and where requests run."""

    def __init__(self) -> None:
        super().__init__()
        self.busy: set[str] = set()
        self.gone: list[str] = []

    async def idle(self, backend: str) -> bool:
        return backend not in self.busy

    def forget(self, backend: str) -> None:
        self.gone.append(backend)
        self.news.set()

    async def until_gone(self, backend: str) -> None:
        with anyio.fail_after(30):
            while backend not in self.gone:
                self.news.clear()
                await self.news.wait()

    def pids(self) -> set[int]:
        return {view.pid for view in self.views if view.pid is not None}


@asynccontextmanager
async def fleet(*plans: BackendPlan, traffic: Traffic, health: HealthSettings = PATIENT) -> AsyncIterator[Fleet]:
    """A fleet that runs inside the block and is cancelled at its end."""
    made = Fleet(
        plans,
        health=health,
        node_id=NODE,
        clock=SystemClock(),
        publish=traffic.publish,
        forget=traffic.forget,
        idle=traffic.idle,
    )
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(made.run)
        yield made
        tasks.cancel_scope.cancel()


def run(traffic: Traffic, scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a scene; afterwards no process is left."""
    with capture_logs():
        asyncio.run(scene())
    assert not any(psutil.pid_exists(pid) for pid in traffic.pids())


def test_unchanged_plans_keep_their_process_and_changed_ones_restart_alone() -> None:
    traffic, engine, other = Traffic(), PlainEngine(), PlainEngine()
    same, old = plan(engine, model="same"), plan(other, model="new")
    changed = plan(PlainEngine(), model="new", args=("--ready-after", "0"))

    async def scene() -> None:
        async with fleet(same, old, traffic=traffic) as ships:
            first = await traffic.until_state("same/0", HEALTHY)
            before = await traffic.until_state("new/0", HEALTHY)
            # An equal plan is the same, whichever object it is.
            await ships.apply([changed, plan(engine, model="same")])
            after = await traffic.until("new/0", lambda view: view.state is HEALTHY and view.pid != before.pid)
            assert not other.is_open
            assert (before.incarnation, after.incarnation) == (1, 2)
            assert before.pid is not None
            assert not psutil.pid_exists(before.pid)
            assert traffic.of("same/0")[-1].pid == first.pid
            assert {view.incarnation for view in traffic.of("same/0")} == {0, 1}
            assert traffic.gone == []

    run(traffic, scene)


def test_a_removed_backend_admits_nothing_drains_and_is_forgotten() -> None:
    traffic, engine = Traffic(), PlainEngine()

    async def scene() -> None:
        async with fleet(plan(engine), traffic=traffic) as ships:
            view = await traffic.until_state("m/0", HEALTHY)
            traffic.busy.add("m/0")
            await ships.apply([])
            draining = await traffic.until_state("m/0", DRAINING)
            assert (draining.goal, draining.leaving, draining.address) == (STOPPED, True, view.address)
            probes = engine.probes
            while engine.probes < probes + 3:  # noqa: ASYNC110  # it answers, and nothing is published of that
                await asyncio.sleep(0.01)
            assert traffic.of("m/0")[-1].state is DRAINING
            assert view.pid is not None
            assert psutil.pid_exists(view.pid)
            traffic.busy.clear()
            await traffic.until_gone("m/0")
            assert traffic.of("m/0")[-1].state is STOPPED
            assert not psutil.pid_exists(view.pid)
            assert not engine.is_open

    run(traffic, scene)


def test_what_is_new_starts_after_the_drains() -> None:
    traffic = Traffic()
    old, new = plan(PlainEngine(), model="old"), plan(PlainEngine(), model="new")

    async def scene() -> None:
        async with fleet(old, traffic=traffic) as ships:
            await traffic.until_state("old/0", HEALTHY)
            traffic.busy.add("old/0")
            await ships.apply([new])
            await traffic.until_state("old/0", DRAINING)
            queued = await traffic.until_state("new/0", BackendState.STARTING)
            assert (queued.pid, queued.phase) == (None, "queued")
            traffic.busy.clear()
            await traffic.until_state("new/0", HEALTHY)

    run(traffic, scene)
    assert_ended_before_launched(traffic, "old/0", "new/0")


def assert_ended_before_launched(traffic: Traffic, old: str, new: str) -> None:
    ended = next(at for at, view in enumerate(traffic.views) if view.id == old and view.state is STOPPED)
    launched = next(at for at, view in enumerate(traffic.views) if view.id == new and view.pid is not None)
    assert ended < launched


def test_requests_get_the_grace_and_no_more() -> None:
    traffic = Traffic()

    async def scene() -> None:
        async with fleet(plan(PlainEngine()), traffic=traffic, health=QUICK) as ships:
            await traffic.until_state("m/0", HEALTHY)
            traffic.busy.add("m/0")
            await ships.apply([])
            await traffic.until_gone("m/0")

    with capture_logs() as logs:
        asyncio.run(scene())
    assert any(entry["event"] == "a backend is ended with requests running" for entry in logs)


def test_a_parked_backend_ends_and_comes_back() -> None:
    traffic, engine = Traffic(), PlainEngine()
    one = plan(engine)

    async def scene() -> None:
        async with fleet(one, traffic=traffic) as ships:
            first = await traffic.until_state("m/0", HEALTHY)
            await ships.apply([one], {"m"})
            parked = await traffic.until_state("m/0", PARKED)
            assert (parked.pid, parked.address, parked.leaving) == (None, None, True)
            assert first.pid is not None
            assert not psutil.pid_exists(first.pid)
            assert engine.is_open, "its model is still there"
            await ships.apply([one])
            back = await traffic.until_state("m/0", HEALTHY)
            assert (back.incarnation, back.goal) == (2, None)
            # Removed and added again: what is known of earlier launches is not taken for this one.
            await ships.apply([])
            await traffic.until_gone("m/0")
            await ships.apply([plan(PlainEngine())])
            again = await traffic.until("m/0", lambda view: view.state is HEALTHY and view.incarnation > 2)
            assert again.incarnation == 3

    run(traffic, scene)


def test_many_changes_at_once_never_make_two_copies() -> None:
    traffic = Traffic()
    plans = [plan(PlainEngine(), args=("--ready-after", "0"), env={"ROUND": str(number)}) for number in range(6)]
    alive: list[int] = []

    def counted(view: BackendView) -> None:
        traffic.publish(view)
        alive.append(sum(psutil.pid_exists(pid) for pid in traffic.pids()))

    async def scene() -> None:
        async with running(plans[0], publish=counted) as ships:
            await traffic.until_state("m/0", HEALTHY)
            for number, one in enumerate(plans[1:]):
                await ships.apply([one], {"m"} if number % 2 else ())
                await asyncio.sleep(0.01)  # a load, not a wait: the changes meet it in different moments
            await ships.apply([])
            await ships.apply([plans[-1]])
            before = traffic.of("m/0")[-1].incarnation
            await traffic.until("m/0", lambda view: view.state is HEALTHY and view.incarnation > before)

    run(traffic, scene)
    assert max(alive) == 1


def test_a_dead_backend_can_be_replaced() -> None:
    traffic = Traffic()
    broken = plan(PlainEngine("--exit-after", "0"))

    async def scene() -> None:
        async with fleet(broken, traffic=traffic) as ships:
            await traffic.until_state("m/0", BackendState.DEAD)
            await ships.apply([plan(PlainEngine())])
            await traffic.until_state("m/0", HEALTHY)

    run(traffic, scene)


def test_a_process_that_dies_while_it_drains_is_not_started_again() -> None:
    traffic = Traffic()

    async def scene() -> None:
        async with fleet(plan(PlainEngine()), traffic=traffic) as ships:
            view = await traffic.until_state("m/0", HEALTHY)
            traffic.busy.add("m/0")
            await ships.apply([])
            await traffic.until_state("m/0", DRAINING)
            assert view.pid is not None
            psutil.Process(view.pid).kill()
            last = await traffic.until("m/0", lambda view: view.pid is None)
            assert (last.state, last.address) == (DRAINING, None)
            traffic.busy.clear()
            await traffic.until_gone("m/0")
            assert traffic.of("m/0")[-1].incarnation == view.incarnation

    run(traffic, scene)


def test_a_start_that_is_not_wanted_any_more_is_broken_off() -> None:
    """While it loads, and while it waits for its turn to load."""
    traffic = Traffic()
    slow, next_ = plan(PlainEngine("--ready-after", "600"), model="slow"), plan(PlainEngine(), model="next")

    async def scene() -> None:
        async with fleet(slow, next_, traffic=traffic) as ships:
            await traffic.until("slow/0", lambda view: view.pid is not None)
            await ships.apply([slow])
            await traffic.until_gone("next/0")
            await ships.apply([next_])
            await traffic.until_gone("slow/0")
            await traffic.until_state("next/0", HEALTHY)

    run(traffic, scene)
    assert_ended_before_launched(traffic, "slow/0", "next/0")


def test_what_is_applied_before_the_fleet_runs_holds() -> None:
    traffic = Traffic()
    ships = Fleet(
        [plan(PlainEngine(), model="a")], health=QUICK, node_id=NODE, clock=SystemClock(), publish=traffic.publish
    )

    async def scene() -> None:
        await ships.apply([plan(PlainEngine(), model="b")], {"b"})
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ships.run)
            await traffic.until_state("b/0", PARKED)
            tasks.cancel_scope.cancel()

    run(traffic, scene)
    assert {view.id for view in traffic.views} == {"b/0"}
