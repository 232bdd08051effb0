"""The discovery contract: where other nodes may be. It reports; only the mesh decides to join."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from typing import ClassVar, Self

from viiwork_core.contracts.context import Context
from viiwork_core.contracts.options import NoOptions, PluginOptions


@dataclass(frozen=True, slots=True)
class Card:
    """What this node announces of itself."""

    node: str
    node_id: str
    address: str
    """ip:port of its gossip."""

    mesh: str
    """Name of the mesh."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """A place where a node may be."""

    address: str
    """ip:port of its gossip, IPv6 in brackets."""

    source: str
    """The discovery's name."""

    hint: str | None = None
    """The node's name, where the source knows it. Untrusted."""

    certain: bool = True
    """False: the source knows of a machine there, not of a node. That it does not answer is normal, and the longer it
    has not, the less often it is asked."""

    also: tuple[str, ...] = ()
    """Further addresses of the same node, ip:port each. All are tried, and one that answers is enough."""


class Discovery(ABC):
    """One source of sightings. The constructor does no I/O; called on the control loop."""

    name: ClassVar[str]
    Options: ClassVar[type[PluginOptions]] = NoOptions

    networks: ClassVar[frozenset[str]] = frozenset()
    """Values of `mesh.network` that turn this source on, beside its name. Its block in `mesh` may stand under these
    too."""

    def __init__(self, options: PluginOptions, context: Context) -> None:
        self.options = options
        self.context = context

    @classmethod
    def wanted(cls, options: PluginOptions) -> bool | None:
        """Whether its options turn it on or off. None: they leave it to mesh.network and to whether its block is
        there. Pure; asked when the configuration is read."""
        del options
        return None

    async def own_address(self) -> str | None:
        """This machine's IP address in the network where the source looks, for the node to listen at.

        None: that is not the source's to say. Asked before it is opened, on the control loop, and only when the
        configuration names no address. Says what is so now. Raises ViiworkError (DiscoveryFailed, with the remedy)
        when there is none: the node, which serves its own machine meanwhile, asks again every few seconds.
        """
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    @abstractmethod
    async def announce(self, card: Card) -> None:
        """Make this node visible to others, where the source can. Returns at once; ends with `async with`."""

    @abstractmethod
    def sightings(self) -> AsyncIterator[Sighting]:
        """Look once and yield what is there. Called again each mesh.rejoin_interval.

        Also before `announce`, by a program that only looks around: then nothing may be told of this machine.
        """
