"""Asks every member how much room it has, each second. Gossip says who is there, this says what they can take."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

import structlog

from viiwork_core.clock import Clock
from viiwork_core.errors import ViiworkError
from viiwork_core.mesh.isolation import Isolation
from viiwork_core.mesh.links import NOT_MODIFIED, Links, api_of, body_of
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.membership import Membership
from viiwork_core.mesh.report import CapacityReport, decode_report
from viiwork_core.mesh.skew import Skew

PATH: Final = "/v1/capacity"
RTT_ALPHA: Final = 0.3

_log = structlog.get_logger("viiwork.mesh")

_Process = tuple[str, str]
"""node, node_id"""


@dataclass(frozen=True, slots=True)
class PeerView:
    """What one member said of itself, and when it was asked."""

    member: Member
    report: CapacityReport
    asked_at: float
    """Monotonic seconds, taken before the request: whatever happened here after it is newer than the report."""

    rtt_ms: float
    """Moving average of the time from question to answer."""

    skew_s: float | None = None
    """How far its clock is ahead of this node's, to about a second; None: not known."""


def _process(member: Member) -> _Process:
    return member.node, member.node_id


class CapacityPolls:
    """One loop per member, on the data loop. A poll starts when the one before it is over, so none overlap."""

    def __init__(
        self,
        membership: Membership,
        links: Links,
        *,
        clock: Clock,
        publish: Callable[[PeerView], None],
        forget: Callable[[str], None],
        silent: Callable[[Member, float], None] = lambda *_: None,
        interval_s: float = 1.0,
    ) -> None:
        """`publish` takes each answer; `forget` takes the name of a node whose last process left; `silent` takes a
        member that did not answer as one does, and when it was asked: whatever gossip says, nothing should go there.
        """
        self._membership = membership
        self._links = links
        self._clock = clock
        self._publish = publish
        self._forget = forget
        self._silent = silent
        self._isolation = Isolation()
        self._interval_s = interval_s
        self._members: dict[_Process, Member] = {}
        self._loops: dict[_Process, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Poll until this node leaves the mesh, or until cancelled."""
        async with asyncio.TaskGroup() as group:
            try:
                async with aclosing(self._membership.changes()) as changes:
                    async for members in changes:
                        self._follow({(member.node, member.node_id): member for member in members}, group)
            finally:
                for loop in self._loops.values():
                    loop.cancel()

    def _follow(self, members: dict[_Process, Member], group: asyncio.TaskGroup) -> None:
        gone = self._members.keys() - members.keys()
        self._members = members
        for process in gone:
            self._loops.pop(process).cancel()
            self._isolation.gone(process)
        # A restarted node is a new process beside the old one: its name is forgotten only with the last of them.
        for node in {node for node, _ in gone} - {node for node, _ in members}:
            self._forget(node)
        for process in members.keys() - self._loops.keys():
            self._loops[process] = group.create_task(self._poll(process), name=f"capacity-{process[0]}")

    async def _poll(self, process: _Process) -> None:
        answers = _Answers()
        while True:
            asked_at = self._clock.monotonic()
            try:
                await self._ask(self._members[process], answers, asked_at)
            except Exception:  # noqa: BLE001  # a defect met at one member must not end the polls of all
                _log.exception("the capacity poll itself failed", node=process[0])
            await asyncio.sleep(max(0.0, asked_at + self._interval_s - self._clock.monotonic()))

    async def _ask(self, member: Member, answers: _Answers, asked_at: float) -> None:
        try:
            report = await self._report(member, answers)
        except ViiworkError as error:
            # The old report is kept, for lists of what there is.
            self._silent(member, asked_at)
            self._isolation.failed(_process(member))
            answers.failed(member, error.message)
            return
        self._isolation.came(_process(member))
        rtt_ms = answers.came(member, (self._clock.monotonic() - asked_at) * 1000)
        self._publish(PeerView(member, report, asked_at, rtt_ms, answers.skew.seconds))

    async def _report(self, member: Member, answers: _Answers) -> CapacityReport:
        """What it says now. Most of the time that is what it said before, and then the tag of that is the answer."""
        known = answers.known if answers.asked_of == member else None
        answer = await self._links.ask(
            api_of(member), PATH, self._interval_s, to=member.node_id, known=known.tag if known else None
        )
        # Also of one that is refused: a clock that is far off is a reason for that.
        answers.skew.saw(member.node, answer.wall, self._clock.wall())
        if known is not None and answer.status == NOT_MODIFIED:
            return known.report
        report = decode_report(body_of(answer, member, PATH), member)
        answers.known = _Known(answer.tag, report) if answer.tag else None
        answers.asked_of = member
        return report


@dataclass(frozen=True, slots=True)
class _Known:
    """A report, and the tag that its text was sent with."""

    tag: str
    report: CapacityReport


class _Answers:
    """How one member has answered so far."""

    def __init__(self) -> None:
        self.skew = Skew()
        self.known: _Known | None = None
        self.asked_of: Member | None = None
        """Whose report is known: of another address it says nothing."""

        self._rtt_ms: float | None = None
        self._failing = False

    def came(self, member: Member, took_ms: float) -> float:
        """The moving average, this answer included, in ms."""
        if self._failing:
            _log.info("capacity is reported again", node=member.node)
        self._failing = False
        self._rtt_ms = took_ms if self._rtt_ms is None else self._rtt_ms + RTT_ALPHA * (took_ms - self._rtt_ms)
        return self._rtt_ms

    def failed(self, member: Member, reason: str) -> None:
        """Logs the first failure in a row."""
        if not self._failing:
            _log.warning("no capacity report", node=member.node, reason=reason)
        self._failing = True
