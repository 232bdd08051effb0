"""What happens to members, as the gossip engine reports it, and who is notified."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

BACKLOG: Final = 1024
"""Events kept for one listener; beyond it the oldest are dropped, and LOST says so."""


class EventKind(StrEnum):
    """What happened."""

    JOINED = "joined"
    UPDATED = "updated"
    SUSPECT = "suspect"
    RECOVERED = "recovered"
    """It answered in time after all."""

    DEAD = "dead"
    LEFT = "left"
    """It said goodbye."""

    CONFLICT = "conflict"
    """Another process claims the same gossip name; the first one is kept."""

    LOST = "lost"
    """Events were lost: read the members again."""


@dataclass(frozen=True, slots=True)
class MemberEvent:
    """One event. Nothing may depend on seeing all of them: the members are the truth."""

    kind: EventKind
    name: str = ""
    """The gossip name, NODE/ID. As it came, not checked; empty for LOST."""

    address: str = ""
    """ip:port of its gossip; for a conflict that of the newer claim."""


class Listeners:
    """Carries events and wake-ups from any thread to those who wait on event loops."""

    def __init__(self) -> None:
        self._bells: set[Bell] = set()
        self._queues: set[_Backlog] = set()

    def bell(self) -> Bell:
        """A bell that `ring` rings from now on, until it is given to `hang_up`."""
        bell = Bell(asyncio.get_running_loop())
        self._bells.add(bell)
        return bell

    def hang_up(self, bell: Bell) -> None:
        self._bells.discard(bell)

    def ring(self) -> None:
        """From any thread: something has changed."""
        for bell in tuple(self._bells):
            bell.ring()

    def tell(self, event: MemberEvent) -> None:
        """From any thread."""
        for queue in tuple(self._queues):
            queue.put(event)

    def end(self) -> None:
        """From any thread: there will be no more events."""
        for queue in tuple(self._queues):
            queue.put(None)

    async def events(self) -> AsyncGenerator[MemberEvent, None]:
        """All events from the first `anext` on, until `end`."""
        queue = _Backlog(Bell(asyncio.get_running_loop()))
        self._queues.add(queue)
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._queues.discard(queue)


class Bell:
    """Wakes one waiter on its own event loop, from any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._event = asyncio.Event()

    def ring(self) -> None:
        # A loop that has ended has nobody left to wake.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        await self._event.wait()
        self._event.clear()


class _Backlog:
    """The events that one listener has not heard yet."""

    def __init__(self, bell: Bell) -> None:
        self._bell = bell
        self._events: deque[MemberEvent | None] = deque(maxlen=BACKLOG)
        self._lost = False

    def put(self, event: MemberEvent | None) -> None:
        self._lost = self._lost or len(self._events) == BACKLOG
        self._events.append(event)
        self._bell.ring()

    async def get(self) -> MemberEvent | None:
        while not self._events:
            await self._bell.wait()
        if self._lost:
            self._lost = False
            return MemberEvent(EventKind.LOST)
        return self._events.popleft()
