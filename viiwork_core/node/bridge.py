"""The bridge between the loops: what the fleet says on the control loop reaches the slot book on the data loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from viiwork_core.clock import Clock
from viiwork_core.config.schema import HealthConfig
from viiwork_core.engines.fleet import BackendPlan, Fleet, HealthSettings
from viiwork_core.engines.slots import SlotBook
from viiwork_core.engines.surroundings import Cards


class Bridge:
    """Carries one fleet's words to `book`, in their order; `changed` is called after each. Made on the data loop.

    `cards`: the machine's GPUs, for the fleet.
    """

    def __init__(self, book: SlotBook, changed: Callable[[], None], cards: Cards | None = None) -> None:
        self._book = book
        self._changed = changed
        self._cards = cards
        self._loop = asyncio.get_running_loop()

    def fleet(self, plans: Sequence[BackendPlan], health: HealthConfig, *, node_id: str, clock: Clock) -> Fleet:
        """A fleet that speaks over this bridge. Its backends are known at once, so that requests wait for them."""
        for plan in plans:
            self._book.see(plan.queued(clock.monotonic()))
        settings = HealthSettings(
            interval=health.interval,
            timeout=health.timeout,
            max_failures=health.max_failures,
            respawn_grace=health.respawn_grace,
            max_respawns=health.max_respawns,
        )
        return Fleet(
            plans,
            health=settings,
            node_id=node_id,
            clock=clock,
            publish=lambda view: self._carry(lambda: self._book.see(view)),
            forget=lambda backend_id: self._carry(lambda: self._book.forget(backend_id)),
            idle=self._idle,
            cards=self._cards,
        )

    def _carry(self, word: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(self._arrive, word)

    def _arrive(self, word: Callable[[], None]) -> None:
        word()
        self._changed()

    async def _idle(self, backend_id: str) -> bool:
        """Asked after all that was published before, so that the book knows by then that the backend drains."""
        answer = asyncio.run_coroutine_threadsafe(self._ask(backend_id), self._loop)
        return await asyncio.wrap_future(answer)

    async def _ask(self, backend_id: str) -> bool:
        return self._book.idle(backend_id)
