"""The source of sightings: every machine of the tailnet that is online may be a node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar

import anyio.to_thread

from viiwork_core import Card, Context, Discovery, PluginOptions, Sighting
from viiwork_discovery_tailscale.daemon import Daemon
from viiwork_discovery_tailscale.options import TailscaleOptions
from viiwork_discovery_tailscale.status import Status, read_status

USUAL_PORT = "7946"
"""Of gossip: asked about where nothing was announced, by a program that only looks around."""


class TailscaleDiscovery(Discovery):
    """Asks the tailscaled of this machine at each look: it can come, go and change its tailnet."""

    name = "tailscale"
    networks: ClassVar[frozenset[str]] = frozenset({"tailnet"})
    Options: ClassVar[type[PluginOptions]] = TailscaleOptions

    def __init__(self, options: PluginOptions, context: Context) -> None:
        super().__init__(options, context)
        assert isinstance(options, TailscaleOptions)
        self._options = options
        self._daemon = Daemon(options.socket, context)
        self._port = USUAL_PORT

    @classmethod
    def wanted(cls, options: PluginOptions) -> bool | None:
        assert isinstance(options, TailscaleOptions)
        return None if options.enabled == "auto" else options.enabled

    async def own_address(self) -> str | None:
        return str((await self._status()).own_address(self._options.networks))

    async def announce(self, card: Card) -> None:
        """Nothing to do: the tailnet tells others of this machine. They listen at the port that this node does."""
        self._port = card.address.rpartition(":")[2]

    async def sightings(self) -> AsyncIterator[Sighting]:
        status = await self._status()
        ranges, tags = self._options.networks, frozenset(self._options.tags)
        own = status.own_address(ranges)
        for machine in status.machines():
            if not machine.may_run_a_node() or (tags and tags.isdisjoint(machine.tags or ())):
                continue
            # Gossip listens on one address, and reaches those of its kind.
            found = next((one for one in machine.addresses(ranges) if one.version == own.version), None)
            if found is not None and found != own:
                place = f"[{found}]:{self._port}" if found.version == 6 else f"{found}:{self._port}"
                yield Sighting(place, self.name, hint=machine.name or None, certain=False)

    async def _status(self) -> Status:
        # A large tailnet's takes some milliseconds to read.
        status = await anyio.to_thread.run_sync(read_status, await self._daemon.status())
        status.check(self._options.tailnet)
        return status
