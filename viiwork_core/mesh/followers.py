"""Followers: one connection to each member's activity stream, for all who look at the mesh from here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Final

import structlog

from viiwork_core.clock import Clock
from viiwork_core.errors import BackendFailed, ViiworkError
from viiwork_core.mesh.links import Links
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.membership import Membership
from viiwork_core.mesh.mirror import Mirror, read_event
from viiwork_core.observe.events import Event, Kept

PATH: Final = "/v1/activity/stream"
LIVE: Final = b": live"
"""The comment with which a stream says that it has told the past."""

SILENCE_S: Final = 45.0
"""Streams break each silence of 15 s; one that does not has lost its other end."""

FIRST_WAIT_S: Final = 1.0
LONGEST_WAIT_S: Final = 30.0
STABLE_S: Final = 10.0
"""A connection that has lasted so long was a good one: the next is tried soon."""

LONGEST_LINE: Final = 1 << 15

_DATA: Final = b"data: "
_DAY_S: Final = 86_400.0

_log = structlog.get_logger("viiwork.mesh")

Tell = Callable[[Member, Event], None]
_Process = tuple[str, str]
"""node, node_id"""


class Followers:
    """Follow every member while `run` runs, on the data loop. What they have told is forgotten with its end."""

    def __init__(
        self, membership: Membership, links: Links, *, clock: Clock, first_wait_s: float = FIRST_WAIT_S
    ) -> None:
        """`first_wait_s`: the wait before a broken connection is tried again, doubled by each further one."""
        self._membership = membership
        self._links = links
        self._clock = clock
        self._first_wait_s = first_wait_s
        self._round: _Round | None = None

    def past(self) -> list[tuple[Member, Kept]]:
        """What all members have told of the last seconds and of what runs, each member's in order."""
        return [] if self._round is None else self._round.past()

    async def run(self, tell: Tell) -> None:
        """Call `tell` with each event and the member that told it, until this node leaves or until cancelled.

        One run may begin while the one before it is still being ended.
        """
        one = self._round = _Round(self._links, self._clock, self._first_wait_s, tell)
        try:
            await one.run(self._membership)
        finally:
            if self._round is one:
                self._round = None


class _Round:
    """One run, with what it has been told."""

    def __init__(self, links: Links, clock: Clock, first_wait_s: float, tell: Tell) -> None:
        self._links = links
        self._clock = clock
        self._first_wait_s = first_wait_s
        self._tell = tell
        self._members: dict[_Process, Member] = {}
        self._mirrors: dict[_Process, Mirror] = {}
        self._loops: dict[_Process, asyncio.Task[None]] = {}

    def past(self) -> list[tuple[Member, Kept]]:
        return [(self._members[process], kept) for process, mirror in self._mirrors.items() for kept in mirror.past()]

    async def run(self, membership: Membership) -> None:
        async with asyncio.TaskGroup() as group:
            try:
                async with aclosing(membership.changes()) as changes:
                    async for members in changes:
                        self._meet({(one.node, one.node_id): one for one in members}, group)
            finally:
                for loop in self._loops.values():
                    loop.cancel()

    def _meet(self, members: dict[_Process, Member], group: asyncio.TaskGroup) -> None:
        for process in self._members.keys() - members.keys():
            self._loops.pop(process).cancel()
            for event in self._mirrors.pop(process).over():
                self._tell(self._members[process], event)
        self._members = members
        for process in members.keys() - self._loops.keys():
            self._mirrors[process] = Mirror(self._clock)
            self._loops[process] = group.create_task(self._follow(process), name=f"follow-{process[0]}")

    async def _follow(self, process: _Process) -> None:
        wait, failing = self._first_wait_s, False
        while True:
            began = self._clock.monotonic()
            try:
                await self._listen(self._members[process], self._mirrors[process])
            except ViiworkError as error:
                if not failing:
                    _log.warning("a member's activity cannot be followed", node=process[0], reason=error.message)
                failing = True
            except Exception:  # noqa: BLE001  # a defect met at one member must not end the streams of all
                _log.exception("following a member's activity itself failed", node=process[0])
            if self._clock.monotonic() - began >= STABLE_S:
                wait, failing = self._first_wait_s, False
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT_S)

    async def _listen(self, member: Member, mirror: Mirror) -> None:
        async with self._links.open_events(member, PATH, SILENCE_S) as stream:
            reading = _Reading(member, mirror, self._tell, stream.wall)
            async for piece in stream.pieces:
                reading.feed(piece)


class _Reading:
    """One connection: lines of events out of pieces of any size."""

    def __init__(self, member: Member, mirror: Mirror, tell: Tell, wall: float | None) -> None:
        """`wall`: the time by the member's clock, which its events' times are compared with."""
        self._member = member
        self._mirror = mirror
        self._tell = tell
        self._wall = wall
        self._rest = b""
        self._warned = False
        mirror.begin()

    def feed(self, piece: bytes) -> None:
        """Raises BackendFailed for a line that is too long."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if max(map(len, (*lines, self._rest))) > LONGEST_LINE:
            raise BackendFailed(f"{self._member.node}: a line of its activity is over {LONGEST_LINE} bytes")
        for line in lines:
            self._line(line)

    def _line(self, line: bytes) -> None:
        if line == LIVE:
            for event in self._mirror.caught_up():
                self._tell(self._member, event)
        elif line.startswith(_DATA):
            self._event(line[len(_DATA) :])

    def _event(self, data: bytes) -> None:
        try:
            event = read_event(data)
        except ValueError as error:
            if not self._warned:
                _log.warning("a member tells what is no event", node=self._member.node, reason=str(error))
            self._warned = True
            return
        age = min(self._wall - event.t, _DAY_S) if event.replay and self._wall is not None else 0.0
        if self._mirror.take(event, age):
            self._tell(self._member, event)
