"""The activity log: what this node does, as short lines for people. Bounded, in memory, without a word of any prompt.

A request is "MODEL → DEST" when it is placed, once for each place that is tried, DEST being a backend or "peer NODE",
then, where its answer is streamed, " first token after 0.4s", and the last of its lines again with how it ended:
" done (1.2s)". All calls on the data loop.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from typing import Final, Generic, Literal, TypeVar

import msgspec

from viiwork_core.clock import Clock

MAX_SUBSCRIBERS: Final = 16
BEHIND: Final = 32
"""Events that a subscriber may be behind; one more and it is dropped."""

MEMBER_BEHIND: Final = 1024
"""The same for a member, which reads for all its viewers: a burst of requests is no sign that it is slow."""

REPLAY_S: Final = 30.0
"""Age up to which past events are told to whoever comes."""

LONGEST: Final = 300
"""Characters of a message about a backend: its reason may quote the engine's last lines."""

End = Literal["done", "aborted by client", "aborted", "failed", "refused"]
"""aborted: the answer broke off. failed: no answer began. refused: it got no place."""

_BEGAN: Final = " first token after "
_ENDED = re.compile(r" (done|aborted by client|aborted|failed|refused|lost) \([0-9]+\.[0-9]s\)\Z")

T = TypeVar("T")


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line."""

    t: int
    """Unix seconds."""

    type: Literal["request", "backend", "system", "alias"]
    message: str
    rid: str | None = None
    """The request's id, of a request's events."""

    replay: bool = False
    """It happened before the subscriber came."""

    n: int = 0
    """Its number among the events of this process, from 1: whoever is told one twice can tell."""


def plain(text: str) -> str:
    """On one line and without what a terminal would obey: an engine's last words may hold anything."""
    return text if text.isprintable() else "".join(one if one.isprintable() else " " for one in text)


def is_end(message: str) -> bool:
    """Whether a request's event is its last one."""
    return _ENDED.search(message) is not None


def place_of(message: str) -> str:
    """The "MODEL → DEST" that an event of an unfinished request begins with."""
    return message.rpartition(_BEGAN)[0] or message


class Kept(msgspec.Struct, frozen=True):
    """An event of the log."""

    number: int
    at: float
    """Monotonic time."""

    event: Event

    def replayed(self) -> Kept:
        """The same for someone who comes later."""
        return Kept(self.number, self.at, msgspec.structs.replace(self.event, replay=True))


class Trail:
    """The events of one request, from the first place it got. Made by `EventLog.request`."""

    def __init__(self, log: EventLog, model: str, rid: str) -> None:
        self._log, self._model, self._rid = log, model, rid
        self._line = model
        self.kept: list[Kept] = []

    def placed(self, dest: str) -> None:
        """It goes to a backend, or to "peer NODE"."""
        self._line = f"{self._model} → {dest}"
        self._log.unfinished[self] = None
        self.kept.append(self._log.emit("request", self._line, self._rid))

    def first_token(self, seconds: float) -> None:
        """Its answer has begun, `seconds` after it was placed there."""
        self.kept.append(self._log.emit("request", f"{self._line}{_BEGAN}{seconds:.1f}s", self._rid))

    def ended(self, how: End, seconds: float) -> None:
        """It is over, `seconds` after it came."""
        self._log.unfinished.pop(self, None)
        self._log.emit("request", f"{self._line} {how} ({seconds:.1f}s)", self._rid)


class Subscriber(Generic[T]):
    """One who follows events. `batch` until it is empty; when `dropped` is set, at once."""

    def __init__(self, past: list[T], *, room: int = BEHIND, member: str | None = None) -> None:
        """`room`: how many events it may be behind. `member`: the node that it is, None: anybody."""
        self.past = past
        """What happened before, oldest first, each marked as replay."""

        self.member = member
        self._room = room
        self.dropped = asyncio.Event()
        """Set when it has missed something and is told no more."""

        self._waiting: list[T] = []
        self._over = False
        self._changed = asyncio.Event()

    def offer(self, event: T) -> bool:
        """Take one event; False when there is no room, and the subscriber is dropped. Never blocks."""
        if len(self._waiting) >= self._room:
            self.drop()
            return False
        self._waiting.append(event)
        self._changed.set()
        return True

    def drop(self) -> None:
        """Tell no more, not even what waits."""
        self._waiting = []
        self.dropped.set()
        self.end()

    def end(self) -> None:
        """Nothing comes after what waits."""
        self._over = True
        self._changed.set()

    async def batch(self) -> list[T]:
        """What has come since the last batch, waited for; empty: it is over."""
        while not self._waiting and not self._over:
            self._changed.clear()
            await self._changed.wait()
        events, self._waiting = self._waiting, []
        return events


class EventLog:
    """The newest `history` events of one node, and who follows them."""

    def __init__(self, clock: Clock, *, history: int) -> None:
        self._clock = clock
        self._ring: deque[Kept] = deque(maxlen=history)
        self._count = 0
        self._subscribers: list[Subscriber[Event]] = []
        self._listeners: list[Callable[[Event | None], None]] = []
        self._closed = False
        self.unfinished: dict[Trail, None] = {}
        """Requests that have a place and no end. A dict for its order."""

    def emit(
        self, kind: Literal["request", "backend", "system", "alias"], message: str, rid: str | None = None
    ) -> Kept:
        """Add an event and tell the subscribers. Never blocks; one that is too far behind is dropped."""
        self._count += 1
        event = Event(int(self._clock.wall()), kind, plain(message), rid, n=self._count)
        kept = Kept(self._count, self._clock.monotonic(), event)
        self._ring.append(kept)
        for listener in self._listeners:
            listener(event)
        self._subscribers = [one for one in self._subscribers if one.offer(event)]
        return kept

    def request(self, model: str, rid: str) -> Trail:
        """The trail of a request that has come in. It says nothing yet."""
        return Trail(self, model, rid)

    def backend(self, backend_id: str, state: str, reason: str | None) -> None:
        """A backend has changed its state."""
        first_line = (reason or "").partition("\n")[0]
        message = f"{backend_id} {state}: {first_line}" if first_line else f"{backend_id} {state}"
        self.emit("backend", message[:LONGEST])

    def events(self) -> list[Event]:
        """All that are kept, oldest first."""
        return [kept.event for kept in self._ring]

    def subscribe(self, member: str | None = None) -> Subscriber[Event]:
        """Follow the log. `leave` when done.

        Over MAX_SUBSCRIBERS, the one that has followed longest is dropped. A `member` has a place of its own, which no
        page that anybody opens here can take; its next connection takes it over.
        """
        room = BEHIND if member is None else MEMBER_BEHIND
        subscriber = Subscriber([kept.event for kept in self.past()], room=room, member=member)
        if self._closed:
            subscriber.end()
            return subscriber
        rivals = [one for one in self._subscribers if one.member == member]
        if len(rivals) >= (MAX_SUBSCRIBERS if member is None else 1):
            self._subscribers.remove(rivals[0])
            rivals[0].drop()
        self._subscribers.append(subscriber)
        return subscriber

    def leave(self, subscriber: Subscriber[Event]) -> None:
        """The subscriber follows no more."""
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)

    def listen(self, listener: Callable[[Event | None], None]) -> None:
        """Call `listener` with each event, before `emit` returns, and with None when the log is closed."""
        if self._closed:
            listener(None)
        else:
            self._listeners.append(listener)

    def ignore(self, listener: Callable[[Event | None], None]) -> None:
        """Call it no more."""
        if listener in self._listeners:
            self._listeners.remove(listener)

    def close(self) -> None:
        """The node stops: whoever follows is told what waits, and then the end."""
        self._closed = True
        for subscriber in self._subscribers:
            subscriber.end()
        listeners, self._subscribers, self._listeners = self._listeners, [], []
        for listener in listeners:
            listener(None)

    def past(self) -> list[Kept]:
        """The last REPLAY_S seconds and all events of unfinished requests, in order, marked as replay."""
        since = self._clock.monotonic() - REPLAY_S
        found = {kept.number: kept for trail in self.unfinished for kept in trail.kept}
        for kept in reversed(self._ring):
            if kept.at < since:
                break
            found[kept.number] = kept
        return [found[number].replayed() for number in sorted(found)]
