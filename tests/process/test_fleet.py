"""A fleet over real processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from plain import NODE, QUICK, SERVER, PlainEngine, Watch, plan, running
from structlog.testing import capture_logs

from viiwork_core import (
    Address,
    CacheFile,
    CacheTransfer,
    Context,
    EngineRefused,
    Launch,
    NoOptions,
    Probe,
    Saved,
    SessionRef,
    Spec,
    Vendor,
)
from viiwork_core.clock import SystemClock
from viiwork_core.engines import process
from viiwork_core.engines.calls import digest_of
from viiwork_core.engines.control import ControlLoop
from viiwork_core.engines.fleet import Fleet, HealthSettings
from viiwork_core.engines.listener import free_port
from viiwork_core.engines.states import BackendState, BackendView

HEALTHY, DEAD, STOPPED = BackendState.HEALTHY, BackendState.DEAD, BackendState.STOPPED


def test_a_backend_starts_tells_its_load_and_is_stopped() -> None:
    watch, engine = Watch(), PlainEngine("--ready-after", "0.5")

    async def scene() -> BackendView:
        async with running(plan(engine), publish=watch.publish):
            view = await watch.until("m/0", lambda view: view.load is not None)
            assert engine.is_open
            assert view.pid is not None
            assert psutil.pid_exists(view.pid)
            return view

    view = asyncio.run(scene())
    assert (view.state, view.incarnation, view.slots, view.respawns) == (HEALTHY, 1, 2, 0)
    assert view.load_asked_at is not None
    first, last = watch.views[0], watch.views[-1]
    assert (first.state, first.phase, first.incarnation) == (BackendState.STARTING, "queued", 0)
    assert (last.state, last.pid, last.address) == (STOPPED, None, None)
    assert view.pid is not None
    assert not psutil.pid_exists(view.pid)
    assert not engine.is_open


def test_a_crash_loop_ends_dead_and_the_reason_holds_the_last_lines() -> None:
    watch, engine = Watch(), PlainEngine("--exit-after", "0", "--exit-code", "7", "--say", "no such tensor: blk.0")

    async def scene() -> BackendView:
        async with running(plan(engine), publish=watch.publish):
            return await watch.until_state("m/0", DEAD)

    view = asyncio.run(scene())
    assert view.reason == "exited with code 7; its last lines:\nno such tensor: blk.0"
    # One launch, one free retry, one respawn out of the budget of one.
    assert (view.incarnation, view.respawns, view.address) == (3, 1, None)


def test_a_backend_that_is_never_ready_is_given_up() -> None:
    watch, engine = Watch(), PlainEngine("--ready-after", "600")
    health = HealthSettings(max_respawns=0)

    async def scene() -> BackendView:
        async with running(plan(engine, startup_timeout=1.0), publish=watch.publish, health=health):
            return await watch.until_state("m/0", DEAD)

    assert asyncio.run(scene()).reason == "not ready within 1 s; last heard: says it is not ready"


def test_a_stranger_on_the_wanted_port_fails_the_start_and_is_named() -> None:
    port, watch = free_port(), Watch()
    stranger = subprocess.Popen([sys.executable, str(SERVER), "--port", str(port)], stdout=subprocess.PIPE)

    async def scene() -> BackendView:
        async with running(plan(PlainEngine(), port=port), publish=watch.publish):
            return await watch.until_state("m/0", DEAD)

    try:
        while not _listens(port):
            assert stranger.poll() is None
        view = asyncio.run(scene())
    finally:
        stranger.kill()
        stranger.communicate()
    assert view.reason == f"m/0 cannot start: port {port} on 127.0.0.1 is held by another process (pid {stranger.pid})"
    assert HEALTHY not in [view.state for view in watch.views]


class RacedEngine(PlainEngine):
    """Its port is taken by somebody else between the draw and the launch."""

    def __init__(self) -> None:
        super().__init__("--no-listen")
        self.strangers: list[socket.socket] = []

    def launch(self, spec: Spec) -> Launch | None:
        stranger = socket.create_server(("127.0.0.1", spec.port))
        self.strangers.append(stranger)
        return super().launch(spec)

    async def probe(self, address: Address) -> Probe:
        return Probe(ready=True)


def test_a_stranger_that_says_ready_does_not_make_the_backend_healthy() -> None:
    watch, engine = Watch(), RacedEngine()

    async def scene() -> BackendView:
        async with running(plan(engine), publish=watch.publish):
            return await watch.until_state("m/0", DEAD)

    view = asyncio.run(scene())
    for stranger in engine.strangers:
        stranger.close()
    assert view.reason is not None
    assert re.fullmatch(
        rf"m/0 cannot start: port \d+ on 127.0.0.1 is held by another process \(pid {os.getpid()}\)", view.reason
    )
    assert HEALTHY not in [view.state for view in watch.views]


def test_a_child_that_ignores_sigterm_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PlainEngine, "stop_timeout", 0.3)
    monkeypatch.setattr(process, "KILL_AFTER", 0.3)
    watch = Watch()

    async def scene() -> int:
        async with running(plan(PlainEngine("--ignore-sigterm")), publish=watch.publish):
            view = await watch.until_state("m/0", HEALTHY)
            assert view.pid is not None
            return view.pid

    pid = asyncio.run(scene())
    assert not psutil.pid_exists(pid)
    assert watch.views[-1].state is STOPPED


def test_the_environment_of_a_child_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIIWORK_MESH_SECRET", "s3cret")
    monkeypatch.setenv("ENTSOE_API_KEY", "s3cret")
    monkeypatch.setenv("HF_TOKEN", "s3cret")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "9")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    engine = PlainEngine("--print-env", env={"FROM": "engine", "VIIWORK_X": "engine"})
    wanted = plan(engine, gpus=(2, 3), vendor=Vendor.NVIDIA, env={"FROM": "operator"})
    watch = Watch()

    async def scene() -> None:
        async with running(wanted, publish=watch.publish):
            await watch.until_state("m/0", HEALTHY)

    with capture_logs() as logs:
        asyncio.run(scene())
    line = next(entry["event"] for entry in logs if entry["event"].startswith("[m/0] {"))
    environment = json.loads(line.removeprefix("[m/0] "))
    assert "s3cret" not in line
    assert {name for name in environment if name.startswith("VIIWORK_")} == {"VIIWORK_CHILD_OF"}
    assert environment["VIIWORK_CHILD_OF"] == NODE
    assert environment["FROM"] == "operator"
    assert environment["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert environment["LC_ALL"] == "C.UTF-8"


def test_a_raising_supervisor_takes_nobody_with_it() -> None:
    watch = Watch()

    def publish(view: BackendView) -> None:
        watch.publish(view)
        if view.model == "bad" and view.state is HEALTHY:
            raise ZeroDivisionError("publishing this one fails")

    async def scene() -> tuple[BackendView, BackendView]:
        plans = plan(PlainEngine(), model="bad"), plan(PlainEngine(), model="good")
        async with running(*plans, publish=publish):
            bad = await watch.until_state("bad/0", DEAD)
            return bad, await watch.until_state("good/0", HEALTHY)

    with capture_logs():
        bad, good = asyncio.run(scene())
    assert bad.reason is not None
    assert "publishing this one fails" in bad.reason
    assert good.pid is not None


def test_loads_are_serial_and_round_robin_over_the_models() -> None:
    watch, engine = Watch(), PlainEngine("--ready-after", "0.3")
    plans = [plan(engine, model=model, index=index, backends=2) for model in ("a", "b") for index in (0, 1)]

    async def scene() -> None:
        async with running(*plans, publish=watch.publish):
            for one in plans:
                await watch.until_state(one.id, HEALTHY)

    asyncio.run(scene())
    events = []
    for view in watch.views:
        event = (view.id, "healthy" if view.state is HEALTHY else "launched")
        if (view.pid is not None and view.state is not STOPPED) and event not in events:
            events.append(event)
    order = ["a/0", "b/0", "a/1", "b/1"]
    assert events == [(one, event) for one in order for event in ("launched", "healthy")]


def test_a_sick_backend_is_unhealthy_at_once_and_respawned_after_max_failures(tmp_path: Path) -> None:
    sick, watch = tmp_path / "sick", Watch()

    async def scene() -> BackendView:
        engine = PlainEngine("--sick-while", str(sick))
        async with running(plan(engine), publish=watch.publish):
            await watch.until_state("m/0", HEALTHY)
            sick.touch()
            await watch.until("m/0", lambda view: view.incarnation == 2)
            sick.unlink()
            return await watch.until_state("m/0", HEALTHY)

    view = asyncio.run(scene())
    states = [view.state for view in watch.views]
    assert BackendState.UNHEALTHY in states[states.index(HEALTHY) :]
    assert (view.incarnation, view.respawns) == (2, 1)
    reasons = {view.reason for view in watch.views}
    assert "given up after 2 failed probes: says it is not ready" in reasons


def test_a_process_that_exits_is_respawned() -> None:
    watch, health = Watch(), HealthSettings(interval=60.0)

    async def scene() -> BackendView:
        async with running(plan(PlainEngine()), publish=watch.publish, health=health):
            view = await watch.until_state("m/0", HEALTHY)
            assert view.pid is not None
            os.kill(view.pid, 9)
            return await watch.until("m/0", lambda view: view.incarnation == 2 and view.state is HEALTHY)

    assert asyncio.run(scene()).respawns == 1
    assert any(view.reason and view.reason.startswith("ended by SIGKILL") for view in watch.views)


class AttachedEngine(PlainEngine):
    def launch(self, spec: Spec) -> Launch | None:
        return None


def test_a_running_server_is_attached_to_without_waiting_for_loads() -> None:
    port, watch = free_port(), Watch()
    server = subprocess.Popen([sys.executable, str(SERVER), "--port", str(port)], stdout=subprocess.PIPE)

    async def scene() -> tuple[BackendView, BackendView]:
        loading = plan(PlainEngine("--ready-after", "600"), model="big")
        async with running(loading, plan(AttachedEngine(), port=port), publish=watch.publish):
            view = await watch.until("m/0", lambda view: view.load is not None)
            server.kill()
            server.wait()
            return view, await watch.until_state("m/0", BackendState.UNHEALTHY)

    try:
        view, lost = asyncio.run(scene())
    finally:
        server.kill()
        server.communicate()
    assert (view.state, view.pid, view.address) == (HEALTHY, None, Address("127.0.0.1", port))
    assert lost.incarnation > view.incarnation


class ClosedEngine(PlainEngine):
    async def __aenter__(self) -> ClosedEngine:
        raise RuntimeError("it will not open")


def test_an_engine_that_cannot_be_opened_costs_only_its_own_backends() -> None:
    watch = Watch()

    async def scene() -> BackendView:
        plans = plan(ClosedEngine(), model="shut"), plan(PlainEngine())
        async with running(*plans, publish=watch.publish):
            await watch.until_state("m/0", HEALTHY)
            return watch.of("shut/0")[-1]

    view = asyncio.run(scene())
    assert view.state is DEAD
    assert view.reason is not None
    assert "it will not open" in view.reason


class MissingEngine(PlainEngine):
    def launch(self, spec: Spec) -> Launch | None:
        return Launch(("/nowhere/engine",))


def test_a_program_that_does_not_exist_is_dead_at_once_with_the_remedy() -> None:
    watch = Watch()

    async def scene() -> BackendView:
        async with running(plan(MissingEngine()), publish=watch.publish):
            return await watch.until_state("m/0", DEAD)

    view = asyncio.run(scene())
    assert view.reason == (
        "cannot start /nowhere/engine: No such file or directory; "
        "install engine, or name the right file in the model's options"
    )
    assert view.respawns == 0


class SlowFingerprint(CacheTransfer):
    engine = "plain"

    def __init__(self, context: Context) -> None:
        super().__init__(NoOptions(), context)
        self.may_answer = asyncio.Event()

    async def fingerprint(self, spec: Spec, address: Address) -> Mapping[str, str]:
        await self.may_answer.wait()
        return {"model": "abc", "kv": "f16"}

    async def save(self, spec: Spec, address: Address, session: SessionRef, name: str) -> Saved:
        raise EngineRefused("not here")

    async def restore(self, spec: Spec, address: Address, session: SessionRef, name: str) -> int:
        raise EngineRefused("not here")

    async def holds(self, spec: Spec, address: Address, session: SessionRef) -> int | None:
        return None

    def read(self, path: Path) -> CacheFile:
        return CacheFile(None, None, ())


def test_the_fingerprint_comes_later_and_the_cache_folder_is_private_and_empty(tmp_path: Path) -> None:
    folder, watch, engine = tmp_path / "cache", Watch(), PlainEngine()
    (folder / "old").mkdir(parents=True)
    (folder / "old" / "file").touch()
    (folder / "link").symlink_to(tmp_path)
    cache = SlowFingerprint(engine.context)

    async def scene() -> BackendView:
        async with running(plan(engine, cache=cache, cache_dir=folder), publish=watch.publish):
            assert (await watch.until_state("m/0", HEALTHY)).fingerprint is None
            assert list(folder.iterdir()) == []
            assert folder.stat().st_mode & 0o777 == 0o700
            cache.may_answer.set()
            return await watch.until("m/0", lambda view: view.fingerprint is not None)

    assert asyncio.run(scene()).fingerprint == digest_of({"kv": "f16", "model": "abc"})
    assert tmp_path.exists()


def test_a_poke_from_another_thread_probes_and_asks_for_the_load() -> None:
    watch, engine = Watch(), PlainEngine()
    health = HealthSettings(interval=600.0)

    async def scene() -> None:
        async with running(plan(engine), publish=watch.publish, health=health) as fleet:
            await watch.until("m/0", lambda view: view.load is not None)
            probes = engine.probes
            poking = threading.Thread(target=fleet.poke, args=("m/0",))
            poking.start()
            poking.join()
            fleet.poke("unknown/0")
            asked_at = watch.views[-1].load_asked_at
            await watch.until("m/0", lambda view: engine.probes > probes and view.load_asked_at != asked_at)

    asyncio.run(scene())
    assert engine.probes > 0


def test_a_fleet_on_the_control_loop_ends_its_children_when_the_loop_cancels_everything() -> None:
    """The control loop cancels each task by itself, so that a supervisor is cancelled twice over."""
    watch, healthy = Watch(), threading.Event()

    def publish(view: BackendView) -> None:
        watch.views.append(view)
        if view.state is HEALTHY:
            healthy.set()

    async def scene() -> None:
        fleet = Fleet([plan(PlainEngine())], health=QUICK, node_id=NODE, clock=SystemClock(), publish=publish)
        async with ControlLoop() as control:
            control.start(fleet.run())
            assert await asyncio.to_thread(healthy.wait, 30)

    asyncio.run(scene())
    pids = {view.pid for view in watch.views if view.pid is not None}
    assert len(pids) == 1
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert watch.views[-1].state is STOPPED


def _listens(port: int) -> bool:
    with closing(socket.socket()) as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
