"""The fleet: all backends of this node, each under a supervisor of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress

import anyio
import structlog
from anyio.abc import TaskGroup

from viiwork_core.clock import Clock
from viiwork_core.engines.calls import CacheCalls, EngineCalls, told
from viiwork_core.engines.gate import LoadGate
from viiwork_core.engines.health import HealthSettings
from viiwork_core.engines.lifeline import Sitter
from viiwork_core.engines.plan import BackendPlan
from viiwork_core.engines.states import BackendView
from viiwork_core.engines.supervisor import Supervisor
from viiwork_core.errors import ViiworkError

__all__ = ["BackendPlan", "Fleet", "HealthSettings"]

_log = structlog.get_logger("viiwork.engines")


class Fleet:
    """Runs the backends of `plans`. `publish` is called on the control loop with each change of a backend."""

    def __init__(
        self,
        plans: Sequence[BackendPlan],
        *,
        health: HealthSettings,
        node_id: str,
        clock: Clock,
        publish: Callable[[BackendView], None],
    ) -> None:
        self._health = health
        self._node_id = node_id
        self._clock = clock
        self._publish = publish
        # Round robin over the models: each has one backend before any has two. The sort keeps the models' order.
        self._plans = sorted(plans, key=lambda plan: plan.spec.index)
        engines = {id(plan.engine): plan.engine for plan in plans}
        caches = {id(plan.cache): plan.cache for plan in plans if plan.cache is not None}
        self._engines = {key: EngineCalls(one, clock=clock, timeout=health.timeout) for key, one in engines.items()}
        self._caches = {key: CacheCalls(one, clock=clock) for key, one in caches.items()}
        self._supervisors: dict[str, Supervisor] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    async def run(self) -> None:
        """Run until cancelled; then all backends are ended, at the same time, within 15 s.

        Opens each distinct engine and cache transfer first and closes it last. Backends whose engine cannot be opened
        are dead with the reason; a cache transfer that cannot be opened costs only the sharing.
        """
        async with Sitter(self._node_id) as sitter, self._opened() as failures:
            self._loop = asyncio.get_running_loop()
            try:
                async with anyio.create_task_group() as tasks:
                    self._start(tasks, sitter, failures)
                    await anyio.sleep_forever()
            finally:
                self._loop = None

    def poke(self, backend_id: str) -> None:
        """Probe the backend and ask for its load now. From any thread; an unknown id, or no running fleet: nothing."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._poke, backend_id)

    def _poke(self, backend_id: str) -> None:
        supervisor = self._supervisors.get(backend_id)
        if supervisor is not None:
            supervisor.poke()

    def _start(self, tasks: TaskGroup, sitter: Sitter, failures: Mapping[int, str]) -> None:
        gate = LoadGate(len(self._plans))
        for position, plan in enumerate(self._plans):
            supervisor = self._supervisors[plan.id] = self._supervisor(plan, failures)
            tasks.start_soon(supervisor.run, sitter, gate, position)

    def _supervisor(self, plan: BackendPlan, failures: Mapping[int, str]) -> Supervisor:
        return Supervisor(
            plan,
            self._engines[id(plan.engine)],
            None if id(plan.cache) in failures else self._caches.get(id(plan.cache)),
            health=self._health,
            node_id=self._node_id,
            clock=self._clock,
            publish=self._publish,
            refused=failures.get(id(plan.engine), ""),
        )

    @asynccontextmanager
    async def _opened(self) -> AsyncIterator[dict[int, str]]:
        """Yields why what could not be opened, by the object's id."""
        opened: list[EngineCalls | CacheCalls] = []
        failures: dict[int, str] = {}
        try:
            everything: dict[int, EngineCalls | CacheCalls] = {**self._engines, **self._caches}
            for key, calls in everything.items():
                try:
                    await calls.open()
                    opened.append(calls)
                except ViiworkError as error:
                    failures[key] = told(error)
                    _log.error("a plugin cannot be opened", plugin=calls.name, reason=failures[key])
            yield failures
        finally:
            with anyio.CancelScope(shield=True):
                for calls in reversed(opened):
                    await _close(calls)


async def _close(calls: EngineCalls | CacheCalls) -> None:
    try:
        await calls.close()
    except ViiworkError as error:
        _log.warning("a plugin did not close", plugin=calls.name, reason=told(error))
