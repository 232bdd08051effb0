"""Discovery by a list in the configuration."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar

from viiwork_core import Card, Discovery, PluginOptions, Sighting


class SeedsOptions(PluginOptions):
    """What mesh.seeds says."""

    addresses: tuple[str, ...] = ()
    """ip:port, IPv6 in brackets."""


class Seeds(Discovery):
    """Reports each configured address every time it is asked: a node may be there by now."""

    name = "seeds"
    Options: ClassVar[type[PluginOptions]] = SeedsOptions
    networks = frozenset({"seeds"})

    async def announce(self, card: Card) -> None:
        """Nothing to do: others find this node by their own lists."""
        del card

    async def sightings(self) -> AsyncIterator[Sighting]:
        assert isinstance(self.options, SeedsOptions)
        for address in self.options.addresses:
            yield Sighting(address, self.name)
