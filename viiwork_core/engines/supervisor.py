"""The supervisor: one task owns one backend, from its first launch to its end, and alone says in what state it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import structlog

from viiwork_core.clock import Clock
from viiwork_core.contracts.engine import Address, Launch, Phase, Spec
from viiwork_core.engines.bell import Bell
from viiwork_core.engines.calls import CacheCalls, EngineCalls, told
from viiwork_core.engines.environment import child_environment, gpu_pin
from viiwork_core.engines.folder import empty_private_folder
from viiwork_core.engines.gate import LoadGate
from viiwork_core.engines.health import HealthSettings, Ladder, Verdict
from viiwork_core.engines.listener import Holder, free_port, listener
from viiwork_core.engines.plan import BackendPlan
from viiwork_core.engines.process import Child, LineSink, Sits, end_in_time, epitaph, spawn
from viiwork_core.engines.run import Run
from viiwork_core.engines.states import GONE, BackendState, BackendView
from viiwork_core.engines.surroundings import Surroundings
from viiwork_core.engines.warm_up import WarmUp
from viiwork_core.errors import EngineRefused, EngineUnreachable, PluginError, ViiworkError

_log = structlog.get_logger("viiwork.engines")

_STARTING_PROBE = 1.0
_LOAD_POLL = 1.0
_SOON = 0.05
"""First pause between the probes of a start: a small model loads in 0.1 s. Each pause that follows is twice as long,
up to the usual one."""

_NO_PROBE = "a backend cannot be probed"
_NO_LOAD = "a backend does not tell its load"


class Supervisor:
    """Runs one backend. Everything happens on the control loop.

    `incarnation`: how often the backend was launched before. `refused`: why it is dead from the start.
    """

    def __init__(
        self,
        plan: BackendPlan,
        engine: EngineCalls,
        cache: CacheCalls | None,
        *,
        health: HealthSettings,
        node_id: str,
        clock: Clock,
        publish: Callable[[BackendView], None],
        surroundings: Surroundings,
        incarnation: int = 0,
        refused: str = "",
    ) -> None:
        self._plan = plan
        self._surroundings = surroundings
        self._engine = engine
        self._cache = cache
        self._health = health
        self._node_id = node_id
        self._clock = clock
        self._publish = publish
        self._refused = refused
        self._ladder = Ladder(health, plan.startup_timeout)
        self._probe_bell = Bell()
        self._load_bell = Bell()
        self._complaints: set[str] = set()
        spec = plan.spec
        self._view = BackendView(
            plan.id,
            spec.model,
            engine.name,
            BackendState.STARTING,
            incarnation=incarnation,
            slots=spec.parallel,
            phase=Phase.QUEUED,
            since=clock.monotonic(),
        )

    @property
    def view(self) -> BackendView:
        """The backend now."""
        return self._view

    def poke(self) -> None:
        """Probe and ask for the load now instead of at the next turn."""
        self._probe_bell.ring()
        self._load_bell.ring()

    def drain(self, goal: BackendState) -> None:
        """Take no new requests from now on, and start nothing again. Whoever drains cancels `run` in the end, and
        says with `goal` what is to become of the backend then."""
        self._set(state=BackendState.DRAINING, goal=goal)

    async def run(self, sitter: Sits, gate: LoadGate, position: int) -> None:
        """Run the backend until it is dead, or until cancelled. Never raises anything but the cancellation: a fault
        in here is this backend's death and nobody else's."""
        try:
            await self._run(sitter, gate, position)
        except Exception:  # noqa: BLE001  # a supervisor is where faults end
            _log.exception("a supervisor cannot even say that it failed", backend=self._plan.id)
        finally:
            gate.leave(position)

    async def _run(self, sitter: Sits, gate: LoadGate, position: int) -> None:
        try:
            await self._lead(sitter, gate, position)
        except ViiworkError as error:
            self._die(told(error))
        except anyio.get_cancelled_exc_class():
            self._set(state=BackendState.STOPPED, phase=None, reason=None, **GONE)
            raise
        except Exception as error:  # noqa: BLE001  # a supervisor is where faults end
            _log.exception("a supervisor failed", backend=self._plan.id)
            cause = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
            self._die(f"its supervisor failed: {cause!r}")

    async def _lead(self, sitter: Sits, gate: LoadGate, position: int) -> None:
        if self._refused:
            raise EngineRefused(self._refused)
        self._publish(self._view)
        if await self._needs_turn():
            await gate.turn(position)
        else:
            gate.leave(position)
        await self._launches(sitter, lambda: gate.leave(position))

    async def _needs_turn(self) -> bool:
        """Is there a model to load? Also finds a launch that cannot be built before the queue is waited through."""
        try:
            return await self._engine.launch(await self._placed()) is not None
        except (EngineRefused, EngineUnreachable):
            return True

    async def _launches(self, sitter: Sits, loaded: Callable[[], None]) -> None:
        while not self._drains():
            spec = await self._placed()
            run = Run(spec, self._plan.address or Address(spec.host, spec.port), loaded)
            try:
                await self._launch(run, sitter)
            except (EngineRefused, EngineUnreachable) as error:
                run.end(told(error))
            loaded()
            if self._drains():
                break
            verdict = Verdict.DEAD if run.hopeless else self._ladder.ended(self._now(), by_itself=run.by_itself)
            if verdict is Verdict.DEAD:
                self._die(run.reason)
                return
            _log.warning("a backend is started again", backend=self._plan.id, reason=run.reason, verdict=verdict.value)
            respawns = self._view.respawns + (verdict is Verdict.RESPAWN)
            self._set(state=BackendState.STARTING, phase=Phase.QUEUED, reason=run.reason, respawns=respawns, **GONE)
            await anyio.sleep(self._ladder.delay)
        self._set(phase=None, **GONE)

    async def _launch(self, run: Run, sitter: Sits) -> None:
        self._ladder.launched(self._now())
        launch = await self._engine.launch(run.spec)
        if launch is not None:
            if self._plan.spec.port and (holder := await listener(run.spec.port, None)).holder is not Holder.NOBODY:
                run.end(run.without_port(holder), hopeless=True)
                return
            await self._start(run, launch, sitter)
        try:
            self._launched(run)
            await self._live(run)
        except anyio.get_cancelled_exc_class():
            self._set(state=BackendState.STOPPED, reason="stopping")
            raise
        finally:
            if run.child is not None:
                await end_in_time(run.child, self._engine.stop_timeout)

    async def _start(self, run: Run, launch: Launch, sitter: Sits) -> None:
        await self._engine.advise(run.spec)
        if run.spec.cache_dir is not None:
            await empty_private_folder(run.spec.cache_dir)
        pin = gpu_pin(run.spec.vendor, run.spec.gpus)
        env = child_environment(self._node_id, pin, launch.env, run.spec.env)
        self._ladder.launched(self._now())
        run.child = await spawn(launch, env=env, backend_id=self._plan.id, sitter=sitter)

    def _launched(self, run: Run) -> None:
        self._set(
            state=BackendState.STARTING,
            incarnation=self._view.incarnation + 1,
            phase=Phase.LOADING,
            address=run.address,
            pid=run.child.pid if run.child else None,
            slots=run.spec.parallel,
        )

    async def _live(self, run: Run) -> None:
        with run.scope:
            async with anyio.create_task_group() as tasks:
                if run.child is not None:
                    tasks.start_soon(self._watch_exit, run, run.child)
                await self._until_ready(run)
                run.loaded()
                tasks.start_soon(self._watch_load, run)
                tasks.start_soon(self._watch_cards, run)
                tasks.start_soon(self._learn_version, run)
                if self._cache is not None:
                    tasks.start_soon(self._learn_fingerprint, run, self._cache)
                await self._watch_health(run)
        if self._view.state is BackendState.HEALTHY:
            self._set(state=BackendState.UNHEALTHY, reason=run.reason)

    async def _watch_exit(self, run: Run, child: Child[LineSink]) -> None:
        await child.wait()
        run.end(epitaph(child), by_itself=True)

    async def _watch_cards(self, run: Run) -> None:
        if run.child and (reason := await self._surroundings.misplaced(run.spec, run.child.pid)):
            run.end(reason)

    async def _until_ready(self, run: Run) -> None:
        pause, warm_up = _SOON, WarmUp(await self._engine.warm_up())
        while not warm_up.over(self._now(), ready=await self._ready(run)):
            self._set(phase=warm_up.phase(self._view.phase))
            if run.child is not None and self._ladder.patience_over(self._now()):
                heard = f"; last heard: {self._view.reason}" if self._view.reason else ""
                run.end(f"not ready within {self._plan.startup_timeout:g} s{heard}")
            await self._probe_bell.wait(pause)
            pause = min(2 * pause, _STARTING_PROBE)
        self._passed()

    async def _ready(self, run: Run) -> bool:
        if run.child is not None:
            found = await listener(run.spec.port, run.child.pid)
            if found.holder is Holder.STRANGER:
                run.end(run.without_port(found), by_itself=True, hopeless=bool(self._plan.spec.port))
            if found.holder is not Holder.OWN:
                self._set(reason=f"does not listen on port {run.spec.port} yet")
                return False
        try:
            probe = await self._engine.probe(run.address)
        except ViiworkError as error:
            if isinstance(error, PluginError):
                run.loaded()  # it may go on like this, and nobody else is to wait for it
            self._set(reason=told(error))
            return False
        phase = self._view.phase if probe.ready else probe.phase
        self._set(phase=phase, progress=probe.progress, reason=probe.reason)
        return probe.ready

    async def _watch_health(self, run: Run) -> None:
        while True:
            poked = await self._probe_bell.wait(self._health.interval)
            try:
                probe = await self._engine.probe(run.address)
            except PluginError as error:
                # The plugin's fault says nothing about the engine: keep the last good view.
                self._complain(_NO_PROBE, error)
            except ViiworkError as error:
                self._failed(run, told(error), counts=not poked, lost=isinstance(error, EngineUnreachable))
            else:
                self._complaints.discard(_NO_PROBE)
                if probe.ready:
                    self._passed()
                else:
                    self._failed(run, probe.reason or "not ready any more", counts=not poked, lost=False)

    def _passed(self) -> None:
        self._ladder.passed(self._now())
        self._set(state=BackendState.HEALTHY, phase=None, progress=None, reason=None)

    def _failed(self, run: Run, reason: str, *, counts: bool, lost: bool) -> None:
        """No new work at the first failure, since requests would wait in vain; the process gets max_failures."""
        load = self._view.load
        counts_itself = load is None or load.busy is not None
        if run.child is None and lost and counts_itself and self._view.state is BackendState.HEALTHY:
            # A server that is not ours may have restarted while it was away: what its slots held is gone.
            # Where only the book counts what runs, it must go on counting: what a restart has cut is released anyway.
            self._set(incarnation=self._view.incarnation + 1, load=None, load_asked_at=None)
        self._set(state=BackendState.UNHEALTHY, reason=reason)
        busy = load is not None and bool(load.busy)
        if self._ladder.failed(self._now(), counts=counts, busy=busy) and run.child is not None:
            run.end(f"given up after {self._health.max_failures} failed probes: {reason}")

    async def _watch_load(self, run: Run) -> None:
        while True:
            asked_at = self._now()
            try:
                load = await self._engine.load(run.spec, run.address)
            except ViiworkError as error:
                self._complain(_NO_LOAD, error)
            else:
                self._complaints.discard(_NO_LOAD)
                self._set(load=load, load_asked_at=asked_at, slots=load.slots, context=load.context)
            await self._load_bell.wait(_LOAD_POLL)

    def _complain(self, what: str, error: ViiworkError) -> None:
        """Log a fault that may last, once until it is over."""
        if what not in self._complaints:
            _log.warning(what, backend=self._plan.id, reason=told(error))
        self._complaints.add(what)

    async def _learn_version(self, run: Run) -> None:
        self._set(version=await self._engine.version(run.address))

    async def _learn_fingerprint(self, run: Run, cache: CacheCalls) -> None:
        try:
            self._set(fingerprint=await cache.fingerprint(run.spec, run.address))
        except ViiworkError as error:
            _log.warning("caches of a backend are not shared", backend=self._plan.id, reason=told(error))
            self._set(unshared=told(error))

    async def _placed(self) -> Spec:
        spec = await self._surroundings.of(self._plan.spec)
        return spec if spec.port or self._plan.address else replace(spec, port=free_port())

    def _die(self, reason: str) -> None:
        _log.error("a backend is dead", backend=self._plan.id, reason=reason)
        self._set(state=BackendState.DEAD, phase=None, reason=reason, **GONE)

    def _set(self, **changes: Any) -> None:
        view = replace(self._view, **changes)
        if view.goal is not None and view.state in _SERVING:
            view = replace(view, state=BackendState.DRAINING)
        if view.state is not self._view.state:
            view = replace(view, since=self._now())
        if view != self._view:
            self._view = view
            self._publish(view)

    def _drains(self) -> bool:
        return self._view.goal is not None

    def _now(self) -> float:
        return self._clock.monotonic()


_SERVING = (BackendState.STARTING, BackendState.HEALTHY, BackendState.UNHEALTHY)
"""What a backend that drains is no longer, whatever its engine says."""
