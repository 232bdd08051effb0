"""Waiting for a place: what is granted to a client that has left comes back, and nobody waits for nothing."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest

from viiwork_core.clock import SystemClock
from viiwork_core.errors import NoFreeSlot, NotFound, QueueFull
from viiwork_core.proxy import dispatch
from viiwork_core.proxy.dispatch import TICK, Dispatcher
from viiwork_core.routing.ticket import Here, Placement, Ticket

sys.path.insert(0, str(Path(__file__).parents[1] / "routing"))

from router_scene import Places, here  # found by the line above


class Scene:
    """One slot, taken, and a dispatcher."""

    def __init__(self, slots: int = 1, *, queue_max: int = 8, queue_timeout: float = 20.0) -> None:
        self.places = Places(queue_max=queue_max)
        self.places.backend(slots)
        self.taken = [here(self.places.offer(self.places.ticket())).reservation for _ in range(slots)]
        self.clock = SystemClock()
        self.timeout = queue_timeout
        self.dispatcher = Dispatcher(self.places.router, self.clock, queue_timeout=queue_timeout)
        self.back: list[Placement] = []

    def ticket(self, **fields: Any) -> Ticket:
        ticket = self.places.ticket(**fields)
        ticket.deadline = self.clock.monotonic() + self.timeout
        return ticket

    def start(self, ticket: Ticket | None = None) -> asyncio.Task[Placement]:
        return asyncio.ensure_future(self.dispatcher.acquire(ticket or self.ticket(), self.give_back))

    def give_back(self, placement: Placement) -> None:
        self.back.append(placement)
        assert isinstance(placement, Here)
        self.places.book.release(placement.reservation)
        self.dispatcher.wake()

    def release(self) -> None:
        self.places.book.release(self.taken.pop())
        self.dispatcher.wake()

    @property
    def queued(self) -> int:
        return self.places.router.queued("m")

    async def waiting(self, number: int) -> None:
        with anyio.fail_after(5):
            while self.queued != number:  # noqa: ASYNC110  # the queue tells nobody
                await asyncio.sleep(0)


def played(scene: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    def test() -> None:
        problems: list[dict[str, Any]] = []

        async def watched() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
            await scene()

        asyncio.run(watched())
        assert problems == []

    test.__name__ = scene.__name__
    test.__doc__ = scene.__doc__
    return test


async def cancelled(task: Awaitable[object]) -> bool:
    try:
        await task
    except asyncio.CancelledError:
        return True
    return False


@played
async def test_a_release_grants_the_place_to_the_first_that_waits() -> None:
    scene = Scene()
    first, second = scene.start(), scene.start()
    await scene.waiting(2)
    scene.release()
    taken = here(await first)
    assert scene.queued == 1
    scene.places.book.release(taken.reservation)
    scene.dispatcher.wake()
    assert here(await second)


@played
async def test_a_client_that_leaves_the_queue_leaves_nothing_behind() -> None:
    scene = Scene()
    task = scene.start()
    await scene.waiting(1)
    task.cancel()
    assert await cancelled(task)
    assert scene.queued == 0
    scene.release()
    assert scene.places.local.free("m", 1) == 1
    assert scene.back == []


@played
async def test_a_client_that_leaves_at_the_moment_of_its_placement_gives_it_back() -> None:
    scene = Scene()
    task, next_one = scene.start(), scene.start()
    await scene.waiting(2)
    scene.release()
    task.cancel()
    assert await cancelled(task)
    assert len(scene.back) == 1
    assert here(await next_one), "and the next one has it"


@played
async def test_a_client_that_leaves_just_before_a_release_is_not_granted_anything() -> None:
    scene = Scene()
    task, next_one = scene.start(), scene.start()
    await scene.waiting(2)
    task.cancel()
    scene.release()
    assert await cancelled(task)
    assert here(await next_one)
    assert scene.back == []


@played
async def test_a_client_that_leaves_just_before_its_time_is_up_or_its_model_is_gone() -> None:
    scene = Scene(queue_timeout=0.0)
    tasks = [scene.start() for _ in range(3)]
    await scene.waiting(3)
    for task in tasks:
        task.cancel()
    scene.dispatcher.look()
    assert [await cancelled(task) for task in tasks] == [True] * 3
    assert scene.queued == 0


@played
async def test_who_held_others_up_and_leaves_lets_them_go_at_once() -> None:
    scene = Scene(2)
    scene.release()
    heavy = scene.start(scene.ticket(weight=2))
    light = scene.start()
    await scene.waiting(2)
    heavy.cancel()
    assert await cancelled(heavy)
    assert light.done() or scene.queued == 0
    assert here(await light)


@played
async def test_time_is_up_with_the_words_that_a_client_reads() -> None:
    scene = Scene(queue_timeout=0.05)
    with pytest.raises(NoFreeSlot, match=r"no free slot for m within 0\.05s") as late:
        await scene.start()
    assert late.value.retry_after == 2
    assert scene.queued == 0


@played
async def test_whoever_waits_behind_one_whose_time_is_up_is_looked_at_again() -> None:
    scene = Scene(2, queue_timeout=0.3)
    scene.release()
    heavy = scene.start(scene.ticket(weight=2))
    scene.timeout = 20.0
    light = scene.start()
    await scene.waiting(2)
    with pytest.raises(NoFreeSlot):
        await heavy
    assert here(await light)


@played
async def test_room_that_comes_without_a_word_is_found_by_the_clock() -> None:
    scene = Scene()
    task = scene.start()
    await scene.waiting(1)
    scene.places.book.release(scene.taken.pop())
    async with asyncio.timeout(TICK * 20):
        assert here(await task)


def test_a_steady_stream_of_others_does_not_put_off_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "TICK", 0.0)

    @played
    async def scene_of_it() -> None:
        scene = Scene(queue_max=100)
        task = scene.start()
        await scene.waiting(1)
        scene.places.book.release(scene.taken.pop())
        others = []
        for _ in range(50):
            others.append(scene.start())
            await asyncio.sleep(0)
        assert task.done(), "the room that came without a word is found"
        for one in others:
            one.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        assert here(await task)

    scene_of_it()


@played
async def test_a_model_that_goes_ends_the_wait() -> None:
    scene = Scene()
    scene.places.peer("peer", busy=1)
    task = scene.start(scene.ticket(pin="peer"))
    await scene.waiting(1)
    scene.places.router.forget("peer")
    scene.dispatcher.wake()
    with pytest.raises(NotFound, match="not served by host"):
        await task


@played
async def test_a_full_queue_is_told_at_once() -> None:
    scene = Scene(queue_max=1)
    task = scene.start()
    await scene.waiting(1)
    with pytest.raises(QueueFull):
        await scene.start()
    task.cancel()
    assert await cancelled(task)


@played
async def test_many_come_and_go_and_every_slot_is_free_in_the_end() -> None:
    scene = Scene(2, queue_max=100)

    async def client(number: int) -> None:
        placement = await scene.start()
        assert isinstance(placement, Here)
        for _ in range(number % 4):
            await asyncio.sleep(0)
        scene.places.book.release(placement.reservation)
        scene.dispatcher.wake()

    clients = [asyncio.ensure_future(client(number)) for number in range(60)]
    await scene.waiting(60)
    scene.release()
    scene.release()
    for number, one in enumerate(clients):
        if number % 3 == 0:
            one.cancel()
            await asyncio.sleep(0)
    ended = await asyncio.gather(*clients, return_exceptions=True)
    assert {type(one) for one in ended} <= {type(None), asyncio.CancelledError}
    assert scene.queued == 0
    assert scene.places.local.free("m", 2) == 2
