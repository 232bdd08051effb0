"""A berth: one backend's place in the fleet. What is wanted there may change at any time; one task brings it about.

However often and however fast that happens, a berth never has two processes: the old one has ended before a new one
is thought of.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
import structlog

from viiwork_core.clock import Clock
from viiwork_core.contracts.engine import Phase
from viiwork_core.engines.drains import Drains
from viiwork_core.engines.gate import LoadGate
from viiwork_core.engines.health import HealthSettings
from viiwork_core.engines.opened import Opened, Tools
from viiwork_core.engines.plan import BackendPlan
from viiwork_core.engines.process import Sits
from viiwork_core.engines.states import BackendState, BackendView
from viiwork_core.engines.supervisor import Supervisor
from viiwork_core.engines.surroundings import Surroundings

_log = structlog.get_logger("viiwork.engines")

_DRAIN_POLL = 0.05


@dataclass(frozen=True)
class Harbour:
    """What all berths of a fleet share."""

    sitter: Sits
    gate: LoadGate
    drains: Drains
    opened: Opened
    health: HealthSettings
    node_id: str
    clock: Clock
    publish: Callable[[BackendView], None]
    surroundings: Surroundings
    idle: Callable[[str], Awaitable[bool]]
    """Whether no request runs on a backend."""


class Berth:
    """Runs a backend as `plan` says, or keeps it parked, until told otherwise by `want`. On the control loop."""

    def __init__(self, plan: BackendPlan, harbour: Harbour, *, parked: bool, incarnation: int) -> None:
        self.incarnation = incarnation
        """How often the backend was launched. It is counted on over all plans, so that whatever is still known of an
        earlier launch is not taken for the present one."""

        self._id = plan.id
        self._plan: BackendPlan | None = plan
        self._parked = parked
        self._harbour = harbour
        # Now, and not when the task gets that far: who was wanted first loads first.
        self._position: int | None = harbour.gate.join()
        self._changed = asyncio.Event()
        self._supervisor: Supervisor | None = None
        self._running: BackendPlan | None = None

    def want(self, plan: BackendPlan | None, *, parked: bool) -> None:
        """Run `plan` from now on, or keep it parked; None: end, and be gone."""
        if (plan, parked) == (self._plan, self._parked):
            return
        self._plan, self._parked = plan, parked
        if self._running is not None:
            # At once, so that nobody who is started in the same breath overlooks it.
            self._harbour.drains.begin(self._id)
        self._changed.set()

    def poke(self) -> None:
        """Probe and ask for the load now."""
        if self._supervisor is not None:
            self._supervisor.poke()

    async def run(self) -> None:
        """Until the backend is not wanted any more, or until cancelled; its process has ended then."""
        try:
            while (plan := self._plan) is not None:
                async with self._harbour.opened.tools(plan) as tools:
                    await self._follow(plan, tools)
        finally:
            self._give_up_turn()

    async def _follow(self, plan: BackendPlan, tools: Tools) -> None:
        """Do what this plan says, for as long as it is the wanted one."""
        while self._plan == plan:
            self._changed.clear()
            if self._parked:
                self._give_up_turn()
                self._publish(plan, BackendState.PARKED, goal=BackendState.PARKED)
                await self._changed.wait()
                continue
            self._publish(plan, BackendState.STARTING, phase=Phase.QUEUED)
            await self._harbour.drains.over()
            if self._plan == plan and not self._parked:
                self._changed.clear()
                await self._keep(plan, tools)

    async def _keep(self, plan: BackendPlan, tools: Tools) -> None:
        """Run the backend until something else is wanted, and end it gently."""
        position = self._harbour.gate.join() if self._position is None else self._position
        self._position = None
        supervisor = self._supervisor = self._supervised(plan, tools)
        self._running = plan
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(supervisor.run, self._harbour.sitter, self._harbour.gate, position)
                await self._changed.wait()
                await self._drain(supervisor)
                tasks.cancel_scope.cancel()
        finally:
            self.incarnation = supervisor.view.incarnation
            self._supervisor = self._running = None
            self._harbour.drains.end(self._id)

    def _supervised(self, plan: BackendPlan, tools: Tools) -> Supervisor:
        return Supervisor(
            plan,
            tools.engine,
            tools.cache,
            health=self._harbour.health,
            node_id=self._harbour.node_id,
            clock=self._harbour.clock,
            publish=self._harbour.publish,
            surroundings=self._harbour.surroundings,
            incarnation=self.incarnation,
            refused=tools.refused,
        )

    async def _drain(self, supervisor: Supervisor) -> None:
        """Until no request runs on the backend, for health.respawn_grace at most."""
        supervisor.drain(self._goal())
        _log.info("a backend drains", backend=self._id, goal=str(self._goal()))
        idle = False
        with anyio.move_on_after(self._harbour.health.respawn_grace):
            while not (idle := await self._harbour.idle(self._id)):
                await anyio.sleep(_DRAIN_POLL)
                supervisor.drain(self._goal())
        if not idle:
            _log.warning("a backend is ended with requests running", backend=self._id)

    def _goal(self) -> BackendState:
        if self._plan is None:
            return BackendState.STOPPED
        return BackendState.PARKED if self._parked else BackendState.STARTING

    def _publish(
        self, plan: BackendPlan, state: BackendState, *, phase: Phase | None = None, goal: BackendState | None = None
    ) -> None:
        """Say how it is while there is no supervisor to say so."""
        view = BackendView(
            plan.id,
            plan.spec.model,
            plan.engine.name,
            state,
            incarnation=self.incarnation,
            slots=plan.spec.parallel,
            phase=phase,
            since=self._harbour.clock.monotonic(),
            goal=goal,
        )
        self._harbour.publish(view)

    def _give_up_turn(self) -> None:
        if self._position is not None:
            self._harbour.gate.leave(self._position)
            self._position = None
