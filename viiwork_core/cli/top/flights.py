"""What happens in the mesh: the newest events, and which requests are under way. Both are bounded."""

from __future__ import annotations

import re
from bisect import insort
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

MOST_EVENTS: Final = 200
MOST_FLIGHTS: Final = 500
LINGER_S: Final = 3.0
"""A request that is over is seen to be."""

_ENDED: Final = re.compile(r" (done|aborted by client|aborted|failed|refused|lost) \(([0-9]+\.[0-9])s\)\Z")
_BEGAN: Final = re.compile(r" first token after ([0-9]+\.[0-9])s\Z")
_PEER: Final = "peer "

Event = Mapping[str, Any]


class Happened:
    """The newest events. One is known by its node's run and its number: some are told twice."""

    def __init__(self) -> None:
        self._events: list[tuple[float, int, str, Event]] = []
        self._known: set[tuple[str, int]] = set()
        self._count = 0

    def add(self, event: Event) -> None:
        """In the order of their times: what another node told before is heard late."""
        key = (str(event["node_id"]), int(event.get("n", 0)))
        if key in self._known:
            return
        self._known.add(key)
        self._count += 1
        insort(self._events, (float(event["t"]), self._count, key[0], event), key=lambda one: one[:2])
        if len(self._events) > MOST_EVENTS:
            _, _, node_id, oldest = self._events.pop(0)
            self._known.discard((node_id, int(oldest.get("n", 0))))

    def newest(self) -> list[Event]:
        """The newest first."""
        return [event for _, _, _, event in reversed(self._events)]


@dataclass(frozen=True, slots=True)
class Flight:
    """A request, as one node tells of it."""

    rid: str
    node: str
    node_id: str
    place: str
    """MODEL → DEST"""

    since: float
    """Monotonic."""

    first: float | None = None
    """Seconds to the first token."""

    end: str | None = None
    took: float = 0.0
    until: float = float("inf")
    """When it is no longer shown."""


@dataclass(frozen=True, slots=True)
class Row:
    """A request, as the nodes tell of it together."""

    rid: str
    model: str
    node: str
    """Where it came in."""

    peer: str | None
    """Where it was sent on to."""

    runs: str | None
    """The backend; None: the other node has not told."""

    first: float | None
    end: str | None
    seconds: float
    """So far, or all it took."""


class Flights:
    """Requests under way, by the run of the node that tells of them, and their id."""

    def __init__(self) -> None:
        self._flights: dict[tuple[str, str], Flight] = {}

    def add(self, event: Event, now: float, wall: float) -> None:
        """An event of a request; others are none of its business."""
        rid = event.get("rid")
        if not rid:
            return
        key, message, replay = (str(event["node_id"]), str(rid)), str(event["message"]), bool(event.get("replay"))
        ended, began = _ENDED.search(message), _BEGAN.search(message)
        before = self._flights.pop(key, None)
        if ended and (before is None or replay):
            return  # it was over before anybody looked
        place = (_ENDED if ended else _BEGAN).sub("", message)
        since = before.since if before and not before.end else now - (max(0.0, wall - event["t"]) if replay else 0.0)
        known = before.first if before and before.place == place else None
        first = float(began[1]) if began else known
        flight = Flight(str(rid), str(event["hostname"]), key[0], place, since, first)
        if ended:
            flight = replace(flight, end=ended[1], took=float(ended[2]), until=now + LINGER_S)
        self._flights[key] = flight
        if len(self._flights) > MOST_FLIGHTS:
            del self._flights[next(iter(self._flights))]

    def clear(self) -> None:
        """The past comes again."""
        self._flights.clear()

    def keep(self, runs: Collection[str]) -> None:
        """Only these runs of nodes are there."""
        self._flights = {key: one for key, one in self._flights.items() if one.end or one.node_id in runs}

    def rows(self, now: float) -> list[Row]:
        """One for each request, the longest under way first."""
        self._flights = {key: one for key, one in self._flights.items() if one.until >= now}
        joined: dict[tuple[str, str], tuple[Flight, str | None]] = {}
        """By id: the flight at the node where it came in, and where it runs."""
        left: deque[Flight] = deque(sorted(self._flights.values(), key=lambda one: (one.since, one.rid)))
        for one in left:
            known = joined.get((one.rid, ""))
            if known is None:
                joined[one.rid, ""] = one, None
            elif _peer(known[0]) == one.node:
                entry = known[0] if known[0].first is not None else replace(known[0], first=one.first)
                joined[one.rid, ""] = entry, _dest(one)
            elif _peer(one) == known[0].node:
                entry = one if one.first is not None else replace(one, first=known[0].first)
                joined[one.rid, ""] = entry, _dest(known[0])
            else:
                joined[one.rid, one.node_id] = one, None
        return [_row(one, runs, now) for one, runs in joined.values()]


def _dest(one: Flight) -> str:
    return one.place.partition(" → ")[2]


def _peer(one: Flight) -> str | None:
    dest = _dest(one)
    return dest.removeprefix(_PEER) if dest.startswith(_PEER) else None


def _row(one: Flight, runs: str | None, now: float) -> Row:
    peer = _peer(one)
    return Row(
        rid=one.rid,
        model=one.place.partition(" → ")[0],
        node=one.node,
        peer=peer,
        runs=runs if peer else _dest(one),
        first=one.first,
        end=one.end,
        seconds=one.took if one.end else max(0.0, now - one.since),
    )
