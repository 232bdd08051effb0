"""A drain whose limit is changed at the moment at which it is reached."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from viiwork_core import Address, Candidate, NoOptions, Policy, Query
from viiwork_core.engines.slots import SlotBook
from viiwork_core.engines.states import BackendState, BackendView
from viiwork_core.kvshare.caches import Caches
from viiwork_core.node.background import Background
from viiwork_core.node.draining import Draining
from viiwork_core.observe.events import EventLog
from viiwork_core.proxy.account import Accounts
from viiwork_core.routing.backends import LocalBackends
from viiwork_core.testing.fake_clock import FakeClock

AT_ONCE = 1e-9


class InOrder(Policy):
    name = "in-order"

    def rank(self, query: Query, candidates: Sequence[Candidate], rng: random.Random) -> Sequence[str]:
        return sorted(candidate.id for candidate in candidates)


class Lonely:
    """What a node without members has learned."""

    @staticmethod
    def elsewhere(model: str, session: str) -> int:
        del model, session
        return 0


class Scene:
    """One slot, taken by a request that does not end."""

    def __init__(self, background: Background) -> None:
        clock: Any = FakeClock()
        book, learning = SlotBook(clock), Lonely()
        book.see(BackendView("m/0", "m", "fake", BackendState.HEALTHY, 1, 1, address=Address("127.0.0.1", 1)))
        assert book.reserve("m/0")
        self.local = LocalBackends(book, InOrder(NoOptions()), random.Random(1))
        events = EventLog(clock, history=8)
        parts: tuple[Any, ...] = (self.local, book, Accounts(clock), learning, events, lambda: None, clock)
        self.draining = Draining("here", *parts)
        caches = Caches(
            {},
            slotted={},
            book=book,
            store=None,
            sender=None,
            control=None,  # type: ignore[arg-type]  # no engine is asked here
            target=lambda *_: None,
            clock=clock,
        )
        self.draining.follow(caches, background, ends=False)

    async def drained(self) -> None:
        async with asyncio.timeout(10):
            while self.draining.told()["state"] != "drained":  # noqa: ASYNC110  # asked, as by a client
                await asyncio.sleep(0)


@pytest.mark.parametrize("turns", range(6))
def test_another_limit_may_come_while_the_first_one_is_reached(turns: int) -> None:
    """After how many turns of the loop that is, is the loop's own affair."""

    async def scene_of_it() -> None:
        async with Background(1.0) as background:
            scene = Scene(background)
            assert scene.draining.begin(AT_ONCE, None)["state"] == "draining"
            for _ in range(turns):
                await asyncio.sleep(0)
            scene.draining.begin(AT_ONCE, None)
            await scene.drained()
            assert scene.local.closed
            assert scene.draining.end()["state"] == "serving"
            assert not scene.local.closed

    asyncio.run(scene_of_it())
