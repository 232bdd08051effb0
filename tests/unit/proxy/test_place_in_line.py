"""Whoever waits and wants to know is told its place in line."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from viiwork_core.clock import SystemClock
from viiwork_core.errors import NoFreeSlot
from viiwork_core.proxy import dispatch
from viiwork_core.proxy.dispatch import Dispatcher
from viiwork_core.routing.ticket import Here, Placement, Ticket

sys.path.insert(0, str(Path(__file__).parents[1] / "routing"))

from router_scene import Places, here  # found by the line above


class Line:
    """One slot, taken, and who waits for it."""

    def __init__(self, *, timeout: float = 20.0) -> None:
        self.places = Places()
        self.places.backend(1)
        self.taken = here(self.places.offer(self.places.ticket())).reservation
        self.clock, self.timeout = SystemClock(), timeout
        self.dispatcher = Dispatcher(self.places.router, self.clock, queue_timeout=timeout)
        self.told: dict[str, list[int]] = {}
        self.news = asyncio.Event()
        self.back: list[Placement] = []

    def come(self, name: str) -> asyncio.Task[Placement]:
        ticket = self.places.ticket()
        ticket.deadline = self.clock.monotonic() + self.timeout
        return asyncio.create_task(self._wait(name, ticket))

    async def _wait(self, name: str, ticket: Ticket) -> Placement:
        async def tell(place: int) -> None:
            self.told.setdefault(name, []).append(place)
            self.news.set()

        return await self.dispatcher.acquire(ticket, self.give_back, tell=tell)

    def give_back(self, placement: Placement) -> None:
        self.back.append(placement)
        assert isinstance(placement, Here)
        self.places.book.release(placement.reservation)

    def release(self) -> None:
        self.places.book.release(self.taken)
        self.dispatcher.wake()

    async def until(self, name: str, places: list[int]) -> None:
        async with asyncio.timeout(5):
            while self.told.get(name, [])[: len(places)] != places:
                self.news.clear()
                await self.news.wait()


def test_the_line_moves_up() -> None:
    async def scene() -> None:
        line = Line()
        first, second = line.come("first"), line.come("second")
        await line.until("first", [1])
        await line.until("second", [2])
        line.release()
        await line.until("second", [2, 1])
        assert isinstance(await first, Here)
        second.cancel()
        await asyncio.wait([second])
        assert second.cancelled()
        assert line.told == {"first": [1], "second": [2, 1]}

    asyncio.run(scene())


def test_a_place_that_stays_is_told_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "REPEAT", 0.01)
    monkeypatch.setattr(dispatch, "TICK", 0.005)

    async def scene() -> None:
        line = Line()
        waiting = line.come("first")
        await line.until("first", [1, 1, 1])
        line.release()
        assert isinstance(await waiting, Here)

    asyncio.run(scene())


def test_its_time_ends_as_ever() -> None:
    async def scene() -> None:
        with pytest.raises(NoFreeSlot):
            await Line(timeout=0.05).come("first")

    asyncio.run(scene())


def test_one_that_leaves_while_it_is_told_keeps_nothing() -> None:
    """Its place is granted at the moment when it cannot take it any more."""

    async def scene() -> None:
        line = Line()
        telling = asyncio.Event()

        async def tell(place: int) -> None:
            telling.set()
            await asyncio.Event().wait()

        ticket = line.places.ticket()
        ticket.deadline = line.clock.monotonic() + 20
        stuck = asyncio.create_task(line.dispatcher.acquire(ticket, line.give_back, tell=tell))
        await telling.wait()
        line.release()
        stuck.cancel()
        await asyncio.wait([stuck])
        assert stuck.cancelled()
        assert len(line.back) == 1
        assert line.places.router.queued("m") == 0

    asyncio.run(scene())
