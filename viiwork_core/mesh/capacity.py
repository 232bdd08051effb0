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
from viiwork_core.mesh.links import Links
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.membership import Membership
from viiwork_core.mesh.report import CapacityReport, decode_report

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
        interval_s: float = 1.0,
    ) -> None:
        """`publish` takes each answer; `forget` takes the name of a node whose last process left."""
        self._membership = membership
        self._links = links
        self._clock = clock
        self._publish = publish
        self._forget = forget
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
            raw = await self._links.get_json_bytes(member, PATH, self._interval_s)
            report = decode_report(raw, member)
        except ViiworkError as error:
            # The old report stands; whoever reads it judges it by its age.
            answers.failed(member, error.message)
            return
        rtt_ms = answers.came(member, (self._clock.monotonic() - asked_at) * 1000)
        self._publish(PeerView(member, report, asked_at, rtt_ms))


class _Answers:
    """How one member has answered so far."""

    def __init__(self) -> None:
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
