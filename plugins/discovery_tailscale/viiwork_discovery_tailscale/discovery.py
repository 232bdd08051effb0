"""The source of sightings. It holds its name; what it shall do is not built yet."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import ClassVar, Self

from viiwork_core import Card, Discovery, NotBuiltYet, Sighting


class TailscaleDiscovery(Discovery):
    """Refuses to open: a node that is told to look here must not start and find nobody."""

    name = "tailscale"
    networks: ClassVar[frozenset[str]] = frozenset({"tailnet"})

    async def __aenter__(self) -> Self:
        raise _not_built_yet()

    async def announce(self, card: Card) -> None:
        raise _not_built_yet()

    def sightings(self) -> AsyncIterator[Sighting]:
        raise _not_built_yet()


def _not_built_yet() -> NotBuiltYet:
    remedy = "set `mesh.network: seeds` and list the other nodes in mesh.seeds, or set `mesh.network: none`"
    return NotBuiltYet(f"discovery 'tailscale' cannot find nodes on the tailnet yet; {remedy}", remedy=remedy)
