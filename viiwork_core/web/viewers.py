"""Viewers: all who look at the mesh from this node, and the one view that is made for them together.

Nothing is followed while nobody looks. With the first viewer the followers start, with the last they end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Final, Protocol

import msgspec

from viiwork_core.mesh.links import api_of
from viiwork_core.mesh.member import Member
from viiwork_core.observe.events import Event, EventLog, Kept, Subscriber

BEHIND: Final = 256
"""Frames that a viewer may be behind; one more and it is dropped, to come again."""

MAX_VIEWERS: Final = 64
"""Over it, the one that has looked longest is dropped."""

MOST_PAST: Final = 4096
"""Past events that whoever comes is told: the newest."""

LOOK_S: Final = 1.0
"""Between two looks at whether a snapshot has changed."""

REFRESH_S: Final = 5.0

_encode = msgspec.json.Encoder().encode

Viewer = Subscriber[bytes]


class MeshEvent(Event, frozen=True, omit_defaults=True, kw_only=True):
    """An event, and whose it is. `node_id` tells runs of one node apart."""

    node_id: str
    hostname: str
    addr: str
    """ip:port of that node's API; empty: this node."""


class Following(Protocol):
    """What brings the other members' events."""

    def past(self) -> list[tuple[Member, Kept]]:
        """What they have told before."""
        ...

    async def run(self, tell: Callable[[Member, Event], None]) -> None:
        """Until cancelled."""
        ...


class Viewers:
    """On the data loop. A frame is made once, whatever the number of viewers."""

    def __init__(
        self,
        log: EventLog,
        followers: Following | None,
        *,
        node: str,
        node_id: str,
        snapshots: Mapping[str, Callable[[], object]],
        refresh: Callable[[], Awaitable[None]],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        look_s: float = LOOK_S,
    ) -> None:
        """`snapshots`: by the name of their event what is told when it changes; `refresh` has the members asked for
        what stands in them; `spawn` starts what runs while somebody looks. No `followers`: there is no mesh."""
        self._log = log
        self._followers = followers
        self._node, self._node_id = node, node_id
        self._snapshots = snapshots
        self._refresh = refresh
        self._spawn = spawn
        self._look_s = look_s
        self._viewers: list[Viewer] = []
        self._frames: dict[str, bytes] = {}
        """The snapshots as they were told last."""

        self._nobody = asyncio.Event()

    def join(self) -> Viewer:
        """Look from now on. `leave` when done."""
        first = not self._viewers
        if first:
            self._frames = {name: _frame(name, make()) for name, make in self._snapshots.items()}
        viewer = Viewer([*self._frames.values(), *self._past()], room=BEHIND)
        if len(self._viewers) >= MAX_VIEWERS:
            self._viewers.pop(0).drop()
        self._viewers.append(viewer)
        if first:
            self._nobody = asyncio.Event()
            self._spawn(self._look(self._nobody))
            self._log.listen(self._here)
        return viewer

    def leave(self, viewer: Viewer) -> None:
        """The viewer looks no more."""
        if viewer in self._viewers:
            self._viewers.remove(viewer)
            self._left()

    def _left(self) -> None:
        if not self._viewers:
            self._log.ignore(self._here)
            self._nobody.set()

    def _past(self) -> list[bytes]:
        told = [(kept.at, self._told_here(kept.event)) for kept in self._log.past()]
        others = self._followers.past() if self._followers is not None else []
        told += [(kept.at, self._told_there(member, kept.event)) for member, kept in others]
        # Each node's own are in order by number; a stable sort by the time they came keeps that.
        told.sort(key=lambda one: one[0])
        return [frame for _, frame in told[-MOST_PAST:]]

    async def _look(self, nobody: asyncio.Event) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                work = [group.create_task(self._compare()), group.create_task(self._ask())]
                if self._followers is not None:
                    work.append(group.create_task(self._followers.run(self._there)))
                await nobody.wait()
                for one in work:
                    one.cancel()
        finally:
            # A defect: those who look are to notice, and come again.
            if not nobody.is_set():
                self._end(Viewer.drop)

    async def _compare(self) -> None:
        while True:
            await asyncio.sleep(self._look_s)
            for name, make in self._snapshots.items():
                frame = _frame(name, make())
                if frame != self._frames[name]:
                    self._frames[name] = frame
                    self._tell(frame)

    async def _ask(self) -> None:
        while True:
            await self._refresh()
            await asyncio.sleep(REFRESH_S)

    def _here(self, event: Event | None) -> None:
        if event is None:
            self._end(Viewer.end)
        else:
            self._tell(self._told_here(event))

    def _there(self, member: Member, event: Event) -> None:
        self._tell(self._told_there(member, event))

    def _tell(self, frame: bytes) -> None:
        self._viewers = [one for one in self._viewers if one.offer(frame)]
        self._left()

    def _end(self, how: Callable[[Viewer], None]) -> None:
        viewers, self._viewers = self._viewers, []
        for viewer in viewers:
            how(viewer)
        self._left()

    def _told_here(self, event: Event) -> bytes:
        return _activity(event, self._node_id, self._node, "")

    def _told_there(self, member: Member, event: Event) -> bytes:
        return _activity(event, member.node_id, member.node, api_of(member))


def _activity(event: Event, node_id: str, hostname: str, addr: str) -> bytes:
    whole = MeshEvent(
        event.t,
        event.type,
        event.message,
        event.rid,
        event.replay,
        event.n,
        node_id=node_id,
        hostname=hostname,
        addr=addr,
    )
    return _frame("activity", whole)


def _frame(name: str, data: object) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), _encode(data))
