"""Attendance: what looks after the membership from the moment it begins, on the control loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from viiwork_core.clock import Clock
from viiwork_core.config.schema import Config
from viiwork_core.contracts.discovery import Card, Discovery
from viiwork_core.errors import ViiworkError
from viiwork_core.mesh.address_book import FILE, AddressBook
from viiwork_core.mesh.greeter import Greeter
from viiwork_core.mesh.greeting import Caller
from viiwork_core.mesh.joining import Joining
from viiwork_core.mesh.links import Links
from viiwork_core.mesh.member import LocalMember
from viiwork_core.mesh.membership import Gossip
from viiwork_core.mesh.namesake import Namesakes
from viiwork_core.mesh.redialling import Redialling
from viiwork_core.mesh.rotation import Rotation
from viiwork_core.security.ring import SecretRing
from viiwork_core.security.signing import Signer


@dataclass(frozen=True)
class Attendance:
    """The loops beside the gossip: joining what is seen and who was gone, changing the secret, finding namesakes."""

    config: Config
    ring: SecretRing | None
    local: LocalMember
    gossip: Gossip
    clock: Clock
    began: float
    """Monotonic time at which this process began."""

    refuse: Callable[[ViiworkError], None]
    """Told, from any thread, that this process must end."""

    async def run(self, sources: Sequence[Discovery]) -> None:
        """Until cancelled."""
        signer = Signer(lambda: _signature(self.ring), node=self.local.node, clock=self.clock) if self.ring else None
        # From the address that gossip comes from: both logs then speak of the same one.
        async with Links(node=self.local.node, signer=signer, source=self.local.host) as links:
            await self._run(links, sources)

    async def _run(self, links: Links, sources: Sequence[Discovery]) -> None:
        greeter = Greeter(links, self._caller(), node_id=self.local.node_id, api_port=self.local.api_port)
        mesh, interval = self.config.mesh, self.config.mesh.rejoin_interval
        joining = Joining(self.gossip, sources, clock=self.clock, interval_s=interval, explain=greeter.explain)
        card = Card(self.local.node, self.local.node_id, self.gossip.address, mesh.name)
        namesakes = Namesakes(
            self.gossip,
            greeter,
            node_id=self.local.node_id,
            age_s=lambda: self.clock.monotonic() - self.began,
            refuse=self.refuse,
        )
        book = AddressBook(self.config.node.state_dir / FILE, self.clock, mesh=self.config.mesh.name)
        redialling = Redialling(self.gossip, book, self.clock)
        loops: list[Coroutine[Any, Any, None]] = [joining.run(card), redialling.run(), namesakes.run()]
        if self.ring is not None:
            loops.append(Rotation(self.gossip, self.ring, self.clock).run())
        async with asyncio.TaskGroup() as group:
            for loop in loops:
                group.create_task(loop)

    def _caller(self) -> Caller:
        mode = "secured" if self.ring else "open"
        return Caller(node=self.local.node, mode=mode, name=self.config.mesh.name)


def _signature(ring: SecretRing | None) -> bytes:
    assert ring is not None, "an open mesh signs nothing"
    return ring.signature
