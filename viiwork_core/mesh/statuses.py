"""Statuses: what the other members tell people about themselves. Asked for only while somebody here looks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from viiwork_core.clock import Clock
from viiwork_core.errors import ViiworkError
from viiwork_core.mesh.links import Links
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.status import MemberStatus, read_status

PATH: Final = "/v1/status"
ASK_EACH_S: Final = 5.0
WITHIN_S: Final = 2.0
FORGOTTEN_S: Final = 20.0
"""A wedged member's last words must not stay for ever."""

AT_ONCE: Final = 32

_log = structlog.get_logger("viiwork.mesh")


@dataclass(slots=True)
class _Known:
    """What is known of one member's status."""

    asked_at: float
    status: MemberStatus | None = None
    came_at: float = float("-inf")
    failing: bool = False


class Statuses:
    """On the data loop. However many look at once, each member is asked once."""

    def __init__(self, links: Links, *, clock: Clock) -> None:
        self._links = links
        self._clock = clock
        self._known: dict[str, _Known] = {}
        self._asking = asyncio.Lock()

    def of(self, member: Member) -> MemberStatus | None:
        """What it last told; None: nothing, or too long ago."""
        known = self._known.get(member.node_id)
        if known is None or self._clock.monotonic() - known.came_at > FORGOTTEN_S:
            return None
        return known.status

    async def refresh(self, members: Sequence[Member]) -> None:
        """Ask those whose turn it is, and forget who is no member any more. Never raises."""
        async with self._asking:
            present = {member.node_id for member in members}
            self._known = {node_id: known for node_id, known in self._known.items() if node_id in present}
            now = self._clock.monotonic()
            due = [member for member in members if self._is_due(member, now)]
            room = asyncio.Semaphore(AT_ONCE)
            async with asyncio.TaskGroup() as group:
                for member in due:
                    group.create_task(self._ask(member, room))

    def _is_due(self, member: Member, now: float) -> bool:
        known = self._known.get(member.node_id)
        return known is None or now - known.asked_at >= ASK_EACH_S

    async def _ask(self, member: Member, room: asyncio.Semaphore) -> None:
        async with room:
            known = self._known.setdefault(member.node_id, _Known(0.0))
            known.asked_at = self._clock.monotonic()
            try:
                known.status = read_status(await self._links.get_json_bytes(member, PATH, WITHIN_S), member)
            except ViiworkError as error:
                if not known.failing:
                    _log.info("no status of a member", node=member.node, reason=error.message)
                known.failing = True
                return
            known.came_at, known.failing = known.asked_at, False
