"""Changing the mesh's secret without anybody being shut out: the new one is used once everybody knows it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

import structlog

from viiwork_core.clock import Clock
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.membership import Gossip
from viiwork_core.security.ring import SecretRing

SETTLE_S: Final = 10.0
"""How long all members must have known the new secret. One that does not know it yet may just be restarting."""

LOOK_S: Final = 0.25

_log = structlog.get_logger("viiwork.mesh")


class Rotation:
    """Decides which secret of the ring is used.

    While some member does not know the new one it is the previous one, else, after a while, the new one, and then for
    good: a node that comes back later with the old one alone stays out. Without members nothing is decided.
    """

    def __init__(self, gossip: Gossip, ring: SecretRing, clock: Clock, *, settle_s: float = SETTLE_S) -> None:
        self._gossip = gossip
        self._ring = ring
        self._clock = clock
        self._settle_s = settle_s
        self._agreed_since: float | None = None
        self._waiting: tuple[str, ...] = ()

    async def run(self) -> None:
        """Until the new secret is used, or this node has always known one only."""
        if self._ring.previous is None:
            return
        _log.info("the mesh's secret is being changed", known=self._gossip.key_ids())
        while not await self.step():  # noqa: ASYNC110  # that nothing changes for a while rings no bell
            await asyncio.sleep(LOOK_S)
        _log.info(
            "the mesh's secret is changed: every member knows the new one, which is used from now on",
            remedy="start this node without the previous secret the next time",
        )

    async def step(self) -> bool:
        """Look at the members once; whether the change is over."""
        members = self._gossip.members()
        waiting = tuple(sorted({member.node for member in members if member.key != self._ring.current.id}))
        self._tell(waiting)
        if waiting:
            self._agreed_since = None
            await self._use(self._previous)
            return False
        return await self._agreed(members)

    async def _agreed(self, members: Sequence[Member]) -> bool:
        now = self._clock.monotonic()
        if not members:
            self._agreed_since = None
            return False
        if self._agreed_since is None:
            self._agreed_since = now
        if now - self._agreed_since < self._settle_s:
            return False
        await self._use(self._ring.current.id)
        return True

    @property
    def _previous(self) -> str:
        assert self._ring.previous is not None, "a ring of one has nothing to change"
        return self._ring.previous.id

    async def _use(self, key_id: str) -> None:
        if self._ring.used.id != key_id:
            await self._gossip.use_key(key_id)

    def _tell(self, waiting: tuple[str, ...]) -> None:
        if waiting and waiting != self._waiting:
            _log.info("the previous secret stays in use until these nodes know the new one", nodes=waiting)
        self._waiting = waiting
