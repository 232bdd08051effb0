"""The activity log: what this node does, as short lines for people. Bounded, in memory, without a word of any prompt.

A request is "MODEL → DEST" when it is placed, once for each place that is tried, DEST being a backend or "peer NODE",
and the last of its lines again with how it ended: " done (1.2s)". All calls on the data loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from viiwork_core.clock import Clock

MAX_SUBSCRIBERS: Final = 16
BEHIND: Final = 32
"""Events that a subscriber may be behind; one more and it is dropped."""

REPLAY_S: Final = 30.0
"""Age up to which past events are told to whoever comes."""

LONGEST: Final = 300
"""Characters of a message about a backend: its reason may quote the engine's last lines."""

End = Literal["done", "aborted by client", "aborted", "failed", "refused"]
"""aborted: the answer broke off. failed: no answer began. refused: it got no place."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line."""

    t: int
    """Unix seconds."""

    type: Literal["request", "backend", "system"]
    message: str
    rid: str | None = None
    """The request's id, of a request's events."""

    replay: bool = False
    """It happened before the subscriber came."""


@dataclass(frozen=True, slots=True)
class _Kept:
    number: int
    at: float
    event: Event


class Trail:
    """The events of one request, from the first place it got. Made by `EventLog.request`."""

    def __init__(self, log: EventLog, model: str, rid: str) -> None:
        self._log, self._model, self._rid = log, model, rid
        self._line = model
        self.kept: list[_Kept] = []

    def placed(self, dest: str) -> None:
        """It goes to a backend, or to "peer NODE"."""
        self._line = f"{self._model} → {dest}"
        self._log.unfinished[self] = None
        self.kept.append(self._log.emit("request", self._line, self._rid))

    def ended(self, how: End, seconds: float) -> None:
        """It is over, `seconds` after it came."""
        self._log.unfinished.pop(self, None)
        self._log.emit("request", f"{self._line} {how} ({seconds:.1f}s)", self._rid)


class Subscriber:
    """One who follows the log. `batch` until it is empty; when `dropped` is set, at once."""

    def __init__(self, past: list[Event]) -> None:
        self.past = past
        """What happened before, oldest first, each marked as replay."""

        self.dropped = asyncio.Event()
        """Set when it has missed something and is told no more."""

        self._waiting: list[Event] = []
        self._over = False
        self._changed = asyncio.Event()

    def offer(self, event: Event) -> bool:
        """Take one event; False when there is no room, and the subscriber is dropped. Never blocks."""
        if len(self._waiting) >= BEHIND:
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

    async def batch(self) -> list[Event]:
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
        self._ring: deque[_Kept] = deque(maxlen=history)
        self._count = 0
        self._subscribers: list[Subscriber] = []
        self._closed = False
        self.unfinished: dict[Trail, None] = {}
        """Requests that have a place and no end. A dict for its order."""

    def emit(self, kind: Literal["request", "backend", "system"], message: str, rid: str | None = None) -> _Kept:
        """Add an event and tell the subscribers. Never blocks; one that is too far behind is dropped."""
        event = Event(int(self._clock.wall()), kind, message, rid)
        kept = _Kept(self._count, self._clock.monotonic(), event)
        self._count += 1
        self._ring.append(kept)
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

    def subscribe(self) -> Subscriber:
        """Follow the log. Over MAX_SUBSCRIBERS, the one that has followed longest is dropped. `leave` when done."""
        subscriber = Subscriber(self._past())
        if self._closed:
            subscriber.end()
            return subscriber
        if len(self._subscribers) >= MAX_SUBSCRIBERS:
            self._subscribers.pop(0).drop()
        self._subscribers.append(subscriber)
        return subscriber

    def leave(self, subscriber: Subscriber) -> None:
        """The subscriber follows no more."""
        if subscriber in self._subscribers:
            self._subscribers.remove(subscriber)

    def close(self) -> None:
        """The node stops: whoever follows is told what waits, and then the end."""
        self._closed = True
        for subscriber in self._subscribers:
            subscriber.end()
        self._subscribers = []

    def _past(self) -> list[Event]:
        """The last REPLAY_S seconds and all events of unfinished requests, in order."""
        since = self._clock.monotonic() - REPLAY_S
        found = {kept.number: kept for trail in self.unfinished for kept in trail.kept}
        for kept in reversed(self._ring):
            if kept.at < since:
                break
            found[kept.number] = kept
        return [msgspec.structs.replace(found[number].event, replay=True) for number in sorted(found)]
