"""The listener contract: a plugin that is told what this node does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import ClassVar, Self

from viiwork_core.contracts.context import Context
from viiwork_core.contracts.options import NoOptions, PluginOptions


class EventType(StrEnum):
    """What an event is about."""

    REQUEST = "request"
    """A request was placed, its answer began, or it is over. No text of it is told."""

    BACKEND = "backend"
    """A backend has another state."""

    SYSTEM = "system"
    """The node or a member came, went, or drains."""

    ALIAS = "alias"
    """A name stands for something else."""


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """One event of this node's activity log."""

    node: str
    """This node's name."""

    at: float
    """Unix seconds."""

    type: EventType
    message: str
    """One line for people, such as "qwen → qwen/0 done (1.2s)". It may quote names that other machines chose."""

    number: int
    """Of the events of this process, from 1. One that is left out was lost, or of a type that was not asked for."""

    request_id: str | None = None
    """Of a request's events; None: it is about no request."""


class Listener(ABC):
    """Told of this node's events, in their order, while `listeners` of the configuration names it.

    Whatever it does, the node goes on: one that is slow misses events, and what it raises is logged.
    """

    name: ClassVar[str]
    """Lowercase word of its block under `listeners`."""

    types: ClassVar[AbstractSet[EventType]]
    """What it is told of."""

    Options: ClassVar[type[PluginOptions]] = NoOptions
    """Model of that block."""

    def __init__(self, options: PluginOptions, context: Context) -> None:
        """Keeps what it is given; does no I/O."""
        self.options = options
        self.context = context

    async def __aenter__(self) -> Self:
        """Open what it needs, within 30 seconds; leaving closes it, within 5. It is tried again when that fails."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    @abstractmethod
    async def on(self, event: NodeEvent) -> None:
        """Take one event, within 10 seconds. The next one comes when this returns."""
