"""Listeners are told of events at their own pace: in order, within bounds, and without harm to the node."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from viiwork_core import CommandOutput, Context, EngineRefused, EventType, Listener, NodeEvent, NoOptions
from viiwork_core.clock import SystemClock
from viiwork_core.engines.control import ControlLoop
from viiwork_core.node.listening import ROOM, Listening, Subscriber
from viiwork_core.observe.events import EventLog
from viiwork_core.testing.fake_clock import FakeClock


async def _no_command(argv: object) -> CommandOutput:
    raise EngineRefused("no command is expected")


async def _no_digest(path: Path) -> str:
    raise EngineRefused("no digest is expected")


class Notes(Listener):
    name = "notes"
    types = frozenset({EventType.BACKEND, EventType.SYSTEM})

    def __init__(self) -> None:
        super().__init__(NoOptions(), Context("n", Path("/nowhere"), _no_command, _no_digest))
        self.seen: list[NodeEvent] = []
        self.opened = self.closed = 0
        self.fails: set[str] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.came = asyncio.Event()

    async def __aenter__(self) -> Notes:
        self.opened += 1
        if "open" in self.fails:
            self.fails.discard("open")
            raise OSError("not yet")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.closed += 1

    async def on(self, event: NodeEvent) -> None:
        self.came.set()
        await self.gate.wait()
        if event.message in self.fails:
            raise RuntimeError(f"no {event.message}")
        self.seen.append(event)


def event(message: str, kind: EventType = EventType.SYSTEM) -> NodeEvent:
    return NodeEvent("n", 0.0, kind, message, 1)


def scene(play: Callable[[Notes, Subscriber], Awaitable[None]]) -> tuple[Notes, Subscriber]:
    async def run() -> tuple[Notes, Subscriber]:
        notes = Notes()
        subscriber = Subscriber(notes, FakeClock(), again_s=0.0)
        task = asyncio.create_task(subscriber.run())
        try:
            async with asyncio.timeout(10):
                await play(notes, subscriber)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        return notes, subscriber

    return asyncio.run(run())


async def settled(subscriber: Subscriber, taken: int, failed: int = 0) -> None:
    while (subscriber.told()["taken"], subscriber.told()["failed"]) != (taken, failed):  # noqa: ASYNC110  # nothing tells of it
        await asyncio.sleep(0)


def test_events_come_in_order_and_only_those_that_were_asked_for() -> None:
    async def play(notes: Notes, subscriber: Subscriber) -> None:
        for message in ("a", "b", "c"):
            subscriber.offer(event(message))
            subscriber.offer(event("none of its business", EventType.REQUEST))
        await settled(subscriber, 3)

    notes, subscriber = scene(play)
    assert [one.message for one in notes.seen] == ["a", "b", "c"]
    assert (notes.opened, notes.closed) == (1, 1)
    assert subscriber.told() == {"name": "notes", "taken": 3, "lost": 0, "failed": 0}


def test_one_that_is_slow_loses_events_with_a_count() -> None:
    async def play(notes: Notes, subscriber: Subscriber) -> None:
        notes.gate.clear()
        subscriber.offer(event("first"))
        await notes.came.wait()
        for number in range(ROOM + 50):
            subscriber.offer(event(str(number)))
        assert subscriber.told()["lost"] == 50
        notes.gate.set()
        await settled(subscriber, ROOM + 1)
        subscriber.offer(event("after"))
        await settled(subscriber, ROOM + 2)

    notes, subscriber = scene(play)
    assert [one.message for one in notes.seen[-2:]] == [str(ROOM - 1), "after"]
    assert subscriber.told()["lost"] == 50


def test_one_that_raises_goes_on_with_the_next() -> None:
    async def play(notes: Notes, subscriber: Subscriber) -> None:
        notes.fails = {"bad"}
        for message in ("good", "bad", "better"):
            subscriber.offer(event(message))
        await settled(subscriber, 2, failed=1)

    notes, _ = scene(play)
    assert [one.message for one in notes.seen] == ["good", "better"]


def test_one_that_keeps_failing_is_benched() -> None:
    async def play(notes: Notes, subscriber: Subscriber) -> None:
        notes.fails = {"bad"}
        for _ in range(8):
            subscriber.offer(event("bad"))
        await settled(subscriber, 0, failed=8)
        notes.fails = set()
        subscriber.offer(event("good"))
        await settled(subscriber, 0, failed=9)

    notes, _ = scene(play)
    assert notes.seen == [], "it is not called while it sits on the bench"


def test_one_that_cannot_be_opened_is_tried_again() -> None:
    async def play(notes: Notes, subscriber: Subscriber) -> None:
        subscriber.offer(event("before"))
        await settled(subscriber, 1)

    async def run() -> Notes:
        notes = Notes()
        notes.fails = {"open"}
        subscriber = Subscriber(notes, FakeClock(), again_s=0.0)
        task = asyncio.create_task(subscriber.run())
        async with asyncio.timeout(10):
            await play(notes, subscriber)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return notes

    notes = asyncio.run(run())
    assert (notes.opened, notes.closed, len(notes.seen)) == (2, 1, 1)


def test_events_of_the_log_cross_to_the_control_loop() -> None:
    async def run() -> tuple[list[NodeEvent], list[str]]:
        notes, log = Notes(), EventLog(SystemClock(), history=10)
        listening = Listening("here", [notes], SystemClock())
        async with ControlLoop() as control:
            listening.follow(log, control)
            log.emit("system", "here is up")
            log.emit("request", "m → m/0", "r1")
            log.backend("m/0", "healthy", None)
            async with asyncio.timeout(10):
                while listening.told()[0]["taken"] < 2:  # noqa: ASYNC110  # the other loop has no event for this one
                    await asyncio.sleep(0.001)
            log.close()
        return notes.seen, [one["name"] for one in listening.told()]

    seen, names = asyncio.run(run())
    assert [(one.node, one.type, one.message, one.number) for one in seen] == [
        ("here", EventType.SYSTEM, "here is up", 1),
        ("here", EventType.BACKEND, "m/0 healthy", 3),
    ]
    assert names == ["notes"]


@pytest.mark.parametrize("count", [0, 1])
def test_without_listeners_the_log_has_none(count: int) -> None:
    async def run() -> int:
        log = EventLog(SystemClock(), history=10)
        listening = Listening("here", [Notes()] * count, SystemClock())
        async with ControlLoop() as control:
            listening.follow(log, control)
            return len(log._listeners)

    assert asyncio.run(run()) == count
