"""The fleet: all backends of this node, each under a supervisor of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress

import anyio
from anyio.abc import TaskGroup

from viiwork_core.clock import Clock
from viiwork_core.engines.berth import Berth, Harbour
from viiwork_core.engines.drains import Drains
from viiwork_core.engines.gate import LoadGate
from viiwork_core.engines.health import HealthSettings
from viiwork_core.engines.lifeline import Sitter
from viiwork_core.engines.opened import Opened
from viiwork_core.engines.plan import BackendPlan
from viiwork_core.engines.states import BackendView
from viiwork_core.engines.surroundings import Cards, Surroundings

__all__ = ["BackendPlan", "Fleet", "HealthSettings"]


async def _always(backend_id: str) -> bool:
    del backend_id
    return True


def _nobody(backend_id: str) -> None:
    del backend_id


class Fleet:
    """Runs the backends of `plans`.

    `publish` is called on the control loop with each change of a backend, `forget` with the id of one that is gone for
    good, after its last change. `idle` says whether no request runs on a backend.
    `cards`: the GPUs of this machine; None: nothing is known of them, so that no backend is looked for on them.
    """

    def __init__(
        self,
        plans: Sequence[BackendPlan],
        *,
        health: HealthSettings,
        node_id: str,
        clock: Clock,
        publish: Callable[[BackendView], None],
        forget: Callable[[str], None] = _nobody,
        idle: Callable[[str], Awaitable[bool]] = _always,
        cards: Cards | None = None,
    ) -> None:
        self._plans = tuple(plans)
        self._parked: frozenset[str] = frozenset()
        self._health = health
        self._node_id = node_id
        self._clock = clock
        self._publish = publish
        self._forget = forget
        self._idle = idle
        self._cards = cards
        self._berths: dict[str, Berth] = {}
        self._incarnations: dict[str, int] = {}
        """Of backends that are gone: one that comes back under the same id counts on."""

        self._loop: asyncio.AbstractEventLoop | None = None
        self._tasks: TaskGroup | None = None
        self._harbour: Harbour | None = None

    async def run(self) -> None:
        """Run until cancelled; then all backends are ended, at the same time: each within its engine's stop_timeout and
        10 s more.

        Engines and cache transfers are opened before their first backend and closed after their last. Backends whose
        engine cannot be opened are dead with the reason; a cache transfer that cannot be opened costs only the sharing.
        """
        async with Sitter(self._node_id) as sitter:
            self._loop = asyncio.get_running_loop()
            try:
                async with anyio.create_task_group() as self._tasks:
                    self._harbour = self._make_harbour(sitter)
                    self._arrange()
                    await anyio.sleep_forever()
            finally:
                self._loop = self._tasks = self._harbour = None

    def _make_harbour(self, sitter: Sitter) -> Harbour:
        return Harbour(
            sitter=sitter,
            gate=LoadGate(),
            drains=Drains(),
            opened=Opened(clock=self._clock, timeout=self._health.timeout),
            health=self._health,
            node_id=self._node_id,
            clock=self._clock,
            publish=self._publish,
            surroundings=Surroundings(self._cards, lambda: len(self._plans)),
            idle=self._idle,
        )

    async def apply(self, plans: Sequence[BackendPlan], parked: Collection[str] = ()) -> None:
        """Run these plans from now on, the models named in `parked` excepted. Returns at once. On the control loop.

        A backend whose plan is the same keeps its process. One whose plan is gone, differs or is parked takes no new
        requests, is given health.respawn_grace for those that run, and ends. What starts waits for such ends.
        """
        self._plans, self._parked = tuple(plans), frozenset(parked)
        if self._tasks is not None:
            self._arrange()

    def _arrange(self) -> None:
        assert self._harbour is not None
        assert self._tasks is not None
        # Round robin over the models: each has one backend before any has two. The sort keeps the models' order.
        wanted = {plan.id: plan for plan in sorted(self._plans, key=lambda plan: plan.spec.index)}
        # Those that are there come first: what is new waits for those that drain.
        for backend_id, berth in self._berths.items():
            plan = wanted.pop(backend_id, None)
            berth.want(plan, parked=plan is not None and plan.spec.model in self._parked)
        for backend_id, plan in wanted.items():
            known, parked = self._incarnations.get(backend_id, 0), plan.spec.model in self._parked
            berth = self._berths[backend_id] = Berth(plan, self._harbour, parked=parked, incarnation=known)
            self._tasks.start_soon(self._moored, backend_id, berth)

    async def _moored(self, backend_id: str, berth: Berth) -> None:
        await berth.run()
        del self._berths[backend_id]
        self._incarnations[backend_id] = berth.incarnation
        self._forget(backend_id)

    def poke(self, backend_id: str) -> None:
        """Probe the backend and ask for its load now. From any thread; an unknown id, or no running fleet: nothing."""
        loop = self._loop
        if loop is not None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(self._poke, backend_id)

    def _poke(self, backend_id: str) -> None:
        berth = self._berths.get(backend_id)
        if berth is not None:
            berth.poke()
