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


class Discovery(ABC):
    """One source of sightings. The constructor does no I/O; called on the control loop."""

    name: ClassVar[str]
    Options: ClassVar[type[PluginOptions]] = NoOptions

    networks: ClassVar[frozenset[str]] = frozenset()
    """Values of `mesh.network` that turn this source on."""

    def __init__(self, options: PluginOptions, context: Context) -> None:
        self.options = options
        self.context = context

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
        """Look once and yield what is there. Called again each mesh.rejoin_interval."""
