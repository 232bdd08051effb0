"""Mirror: what another member's activity log has said of late, checked, and kept for whoever looks later."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from viiwork_core.clock import Clock
from viiwork_core.observe.events import REPLAY_S, Event, Kept, is_end, place_of, plain

LONGEST_MESSAGE: Final = 1024
KEPT: Final = 1024
"""Events of one member that are kept."""

UNFINISHED: Final = 1024
"""Requests of one member that are known to run; beyond it the oldest is no longer followed."""

_PLACES: Final = 16
"""Events of one such request."""


class _Told(msgspec.Struct):
    """An event on the wire. Its field for the node is not read: the connection says whose event it is."""

    t: Annotated[int, Meta(ge=0, le=1 << 40)]
    type: Literal["request", "backend", "system", "alias"]
    message: Annotated[str, Meta(max_length=1 << 14)]
    rid: Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,128}\Z")] | None = None
    replay: bool = False
    n: Annotated[int, Meta(ge=0, le=1 << 53)] = 0


_decoder = msgspec.json.Decoder(_Told)


def read_event(line: bytes) -> Event:
    """One event as a member tells it. Raises ValueError for what is none."""
    try:
        told = _decoder.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"malformed event: {error}") from None
    return Event(told.t, told.type, plain(told.message)[:LONGEST_MESSAGE], told.rid, replay=told.replay, n=told.n)


class Mirror:
    """One process's events. One that is repeated after the connection broke is kept once. Pure."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ring: deque[Kept] = deque(maxlen=KEPT)
        self._unfinished: OrderedDict[str, list[Kept]] = OrderedDict()
        self._count = 0
        self._newest = 0
        self._running: set[str] | None = None

    def begin(self) -> None:
        """A connection begins: first comes what the member tells of the past."""
        self._running = set()

    def take(self, event: Event, age_s: float = 0.0) -> bool:
        """Note an event that happened so long ago; whether it is news."""
        if self._running is not None and event.rid is not None and not is_end(event.message):
            self._running.add(event.rid)
        if event.n and event.n <= self._newest:
            return False
        self._newest = max(self._newest, event.n)
        self._keep(event, age_s)
        return True

    def caught_up(self) -> list[Event]:
        """The past has been told. Returns an end for each request that has ended in the meantime, unseen."""
        running, self._running = self._running, None
        return [] if running is None else self._lost([rid for rid in self._unfinished if rid not in running])

    def over(self) -> list[Event]:
        """The process is gone. Returns an end for each request that ran there."""
        return self._lost(list(self._unfinished))

    def past(self) -> list[Kept]:
        """The last seconds and all events of unfinished requests, in order, marked as replay."""
        since = self._clock.monotonic() - REPLAY_S
        found = {kept.number: kept for events in self._unfinished.values() for kept in events}
        found |= {kept.number: kept for kept in self._ring if kept.at >= since}
        return [found[number].replayed() for number in sorted(found)]

    def _keep(self, event: Event, age_s: float) -> None:
        self._count += 1
        kept = Kept(self._count, self._clock.monotonic() - max(0.0, age_s), event)
        self._ring.append(kept)
        if event.type != "request" or event.rid is None:
            return
        if is_end(event.message):
            self._unfinished.pop(event.rid, None)
            return
        events = self._unfinished.setdefault(event.rid, [])
        if len(events) < _PLACES:
            events.append(kept)
        if len(self._unfinished) > UNFINISHED:
            self._unfinished.popitem(last=False)

    def _lost(self, rids: list[str]) -> list[Event]:
        now, ends = self._clock.monotonic(), []
        for rid in rids:
            events = self._unfinished[rid]
            message = f"{place_of(events[-1].event.message)} lost ({now - events[0].at:.1f}s)"
            ends.append(Event(int(self._clock.wall()), "request", message, rid))
        for end in ends:
            self._keep(end, 0.0)
        return ends
