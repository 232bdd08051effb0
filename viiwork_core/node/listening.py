"""Listening: plugins' listeners are told of this node's events, each at its own pace, on the control loop.

An event is put into a bounded queue and nothing else happens on the data loop. Where the queue is full it is lost, and
counted.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final

import anyio
import structlog

from viiwork_core.clock import Clock
from viiwork_core.contracts.listener import EventType, Listener, NodeEvent
from viiwork_core.engines.control import ControlLoop
from viiwork_core.errors import ViiworkError
from viiwork_core.observe.events import Event, EventLog
from viiwork_core.registry.guard import Guard

ROOM: Final = 256
"""Events that a listener may be behind; further ones are lost."""

OPEN_S: Final = 30.0
TAKE_S: Final = 10.0
CLOSE_S: Final = 5.0
AGAIN_S: Final = 30.0
"""After a listener that could not be opened."""

_log = structlog.get_logger("viiwork.listeners")


class Listening:
    """All listeners of a node. Made on the data loop."""

    def __init__(self, node: str, listeners: Sequence[Listener], clock: Clock) -> None:
        self._node = node
        self._subscribers = [Subscriber(listener, clock) for listener in listeners]

    def follow(self, events: EventLog, control: ControlLoop) -> None:
        """Tell them of all events from now on. Without listeners nothing is done for an event."""
        for subscriber in self._subscribers:
            control.start(subscriber.run())
        if self._subscribers:
            events.listen(self._heard)

    def _heard(self, event: Event | None) -> None:
        if event is None:
            return
        told = NodeEvent(self._node, event.t, EventType(event.type), event.message, event.n, event.rid)
        for subscriber in self._subscribers:
            subscriber.offer(told)

    def told(self) -> list[dict[str, Any]]:
        """Each listener with its counts."""
        return [subscriber.told() for subscriber in self._subscribers]


class Subscriber:
    """One listener with its queue."""

    def __init__(self, listener: Listener, clock: Clock, *, again_s: float = AGAIN_S) -> None:
        self._listener = listener
        self._again_s = again_s
        self._guard = Guard(f"listener {listener.name}", clock=clock)
        self._types = frozenset(listener.types)
        self._queue: deque[NodeEvent] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._rung = asyncio.Event()
        self._taken = self._lost = self._failed = 0
        self._losing = self._failing = False

    def told(self) -> dict[str, Any]:
        """Counts: events that it took, those that it was too slow for, and those that it failed over."""
        return {"name": self._listener.name, "taken": self._taken, "lost": self._lost, "failed": self._failed}

    def offer(self, event: NodeEvent) -> None:
        """Take one event, or lose it. Never blocks; from the data loop."""
        if event.type not in self._types:
            return
        if len(self._queue) >= ROOM:
            self._lost += 1
            if not self._losing:
                _log.warning("a listener is too slow, and misses events", listener=self._listener.name)
            self._losing = True
            return
        self._losing = False
        self._queue.append(event)
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop was closed meanwhile
                self._loop.call_soon_threadsafe(self._rung.set)

    async def run(self) -> None:
        """Until cancelled. On the control loop."""
        self._loop = asyncio.get_running_loop()
        while not await self._opened():  # noqa: ASYNC110  # it is tried again after a while; nothing tells of it
            await asyncio.sleep(self._again_s)
        try:
            while True:
                await self._next()
        finally:
            await self._closed()

    async def _opened(self) -> bool:
        return await self._called("opening", OPEN_S, self._listener.__aenter__)

    async def _next(self) -> None:
        while not self._queue:
            self._rung.clear()
            if not self._queue:  # one may have come before that
                await self._rung.wait()
        event = self._queue.popleft()
        if await self._called("on", TAKE_S, lambda: self._listener.on(event)):
            self._taken += 1
        else:
            self._failed += 1

    async def _called(self, what: str, deadline_s: float, make: Callable[[], Any]) -> bool:
        """Whether it succeeded. Only the first failure in a row is logged."""
        try:
            await self._guard.call(what, deadline_s, make)
        except ViiworkError as error:
            if not self._failing:
                _log.warning("a listener fails", listener=self._listener.name, reason=error.message)
            self._failing = True
            return False
        self._failing = False
        return True

    async def _closed(self) -> None:
        with anyio.CancelScope(shield=True):
            await self._called("closing", CLOSE_S, lambda: self._listener.__aexit__(None, None, None))
