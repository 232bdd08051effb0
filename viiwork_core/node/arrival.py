"""How this node comes into the mesh: at once where its address is known, else as soon as a discovery tells it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

import structlog

from viiwork_core.clock import Clock
from viiwork_core.config.schema import Config
from viiwork_core.contracts.discovery import Discovery
from viiwork_core.engines.control import ControlLoop
from viiwork_core.errors import ViiworkError
from viiwork_core.mesh.awaited import AwaitedMembership
from viiwork_core.mesh.links import Links
from viiwork_core.mesh.member import LocalMember
from viiwork_core.mesh.membership import KinshipMembership
from viiwork_core.mesh.prospects import FilteredSource, Prospects
from viiwork_core.node.addresses import Places
from viiwork_core.node.attendance import Attendance
from viiwork_core.node.own_address import awaited_address
from viiwork_core.security.ring import SecretRing

AGAIN_S: Final = 10.0
"""After an address that could not be listened on."""

_log = structlog.get_logger("viiwork.mesh")


@dataclass
class Arrival:
    """On the data loop."""

    config: Config
    places: Places
    secret: SecretRing | None
    describe: Callable[[str], LocalMember]
    """This node as the others are to know it, at an address."""

    membership: AwaitedMembership
    links: Links
    sources: Sequence[Discovery]
    control: ControlLoop
    clock: Clock

    host: str | None = None
    """This node's address in the mesh, once it is in it."""

    refusal: Future[ViiworkError] = field(default_factory=Future)
    """Resolved with the reason when this process must end."""

    def __post_init__(self) -> None:
        self._began = self.clock.monotonic()

    async def now(self, host: str) -> None:
        """Gossip at `host`, and look for other nodes from now on. Raises ConfigError when it cannot be bound."""
        local, interval = self.describe(host), self.config.mesh.rejoin_interval
        if self.secret is None:
            # What an open mesh recognises a member by.
            await self.links.come_from(host)
        membership = KinshipMembership(
            local, mesh=self.config.mesh.name, secret=self.secret, rejoin_interval=min(15.0, interval)
        )
        if not await self.membership.begin(membership):
            return
        self.host = host
        refuse = self.refusal.set_result
        attendance = Attendance(self.config, self.secret, local, membership, self.clock, self._began, refuse)
        prospects = Prospects(membership, clock=self.clock, first_s=2 * interval)
        sources = [FilteredSource(source, prospects) for source in self.sources]
        self.control.start(prospects.run())
        self.control.start(attendance.run(sources))

    async def later(self) -> None:
        """Wait until a discovery tells this node's address, then do the same there. Until then the node has no mesh."""
        listens: str | None = None
        network = self.config.mesh.network
        while True:
            host = await self.control.call(lambda: awaited_address(network, self.sources, clock=self.clock))
            try:
                if host != listens:
                    self.places.add(host)
                    listens = host
                await self.now(host)
            except ViiworkError as error:
                _log.error("the mesh cannot begin", address=host, reason=error.message, remedy=error.remedy or None)
                await asyncio.sleep(AGAIN_S)
            else:
                _log.info("the mesh begins", address=host)
                return
