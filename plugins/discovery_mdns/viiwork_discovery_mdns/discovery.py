"""The source of sightings: announces this node by mDNS, and reports the others that are announced."""

from __future__ import annotations

from collections.abc import AsyncIterator
from ipaddress import ip_address
from types import TracebackType
from typing import ClassVar

from viiwork_core import Card, Context, Discovery, DiscoveryFailed, PluginOptions, Sighting
from viiwork_discovery_mdns.interfaces import Interface, choose
from viiwork_discovery_mdns.options import MdnsOptions
from viiwork_discovery_mdns.station import Station


class MdnsDiscovery(Discovery):
    """Nodes of the local network, as `_viiwork._tcp.local.`"""

    name = "mdns"
    Options: ClassVar[type[PluginOptions]] = MdnsOptions
    networks: ClassVar[frozenset[str]] = frozenset({"lan"})

    def __init__(self, options: PluginOptions, context: Context) -> None:
        super().__init__(options, context)
        assert isinstance(options, MdnsOptions)
        self._interface = options.interface
        self._card: Card | None = None
        self._station: Station | None = None

    @classmethod
    def wanted(cls, options: PluginOptions) -> bool | None:
        assert isinstance(options, MdnsOptions)
        return None if options.mdns == "auto" else options.mdns

    async def own_address(self) -> str | None:
        """That of the interface which is to be spoken on."""
        interface = choose(self._interface, None)
        address = interface.own_address()
        if address is None:
            remedy = "give it one, or set mesh.mdns.interface to another interface"
            raise DiscoveryFailed(f"interface {interface.name} has only link-local addresses", remedy=remedy)
        return str(address)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close()

    async def announce(self, card: Card) -> None:
        """Returns before the announcement is out: a name is probed for most of a second."""
        self._card = card
        await self._close()
        self._present()

    async def sightings(self) -> AsyncIterator[Sighting]:
        """Everybody but this node itself. Raises DiscoveryFailed while there is no interface to speak on."""
        for sighting in await self._look():
            if self._card is None or sighting.address != self._card.address:
                yield sighting

    async def _look(self) -> list[Sighting]:
        try:
            if self._station is not None and self._station.interface != self._chosen():
                await self._close()
            return await self._present().look()
        except DiscoveryFailed:
            # What is open is of no use: the next look opens it again.
            await self._close()
            raise

    def _present(self) -> Station:
        if self._station is None:
            self._station = Station(self.name, self._chosen(), self._card)
        return self._station

    def _chosen(self) -> Interface:
        """By the state of things now: interfaces come, go and change their addresses."""
        address = ip_address(self._card.address.rpartition(":")[0].strip("[]")) if self._card else None
        return choose(self._interface, address)

    async def _close(self) -> None:
        station, self._station = self._station, None
        if station is not None:
            await station.close()
