"""Transfers: a saved file on its way to one member, from the offer to its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

import anyio

from viiwork_core.kvshare.bases import Base, Key
from viiwork_core.kvshare.sealing import ReplicaLabel

Target = TypeVar("Target")


@dataclass(frozen=True, slots=True)
class Save(Generic[Target]):
    """A saved session to send. From `Sender.offer` on, the file is the sender's to delete."""

    path: Path
    label: ReplicaLabel
    target: Target
    bytes: int
    """Size of the file."""


@dataclass(frozen=True, slots=True)
class Delivery(Generic[Target]):
    """How one save ended."""

    save: Save[Target]
    error: str | None
    """Why the target does not have it; None: it has."""

    bytes: int
    """Bytes handed to the network."""

    seconds: float
    """To the target's answer; 0 for a save that was never started."""


@dataclass(slots=True)
class Transfer(Generic[Target]):
    """One under way."""

    save: Save[Target]
    key: Key
    """Of what the target has of the session."""

    bases: list[Base] = field(default_factory=list)
    """What the file may be a delta against, the one to try next first; none: it goes whole."""

    scope: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    forgotten: bool = False
    """The session was, meanwhile."""

    error: str | None = "the node stops"
    start: int | None = 0
    """Byte of the file to begin at; None: the target is asked first, since a part may be there."""

    sent: int = 0
    """Bytes handed to the network."""

    broken: int = 0
    """How often the connection broke."""

    def useless(self) -> Base:
        """The base is not what the target has: on with the next one, or the whole file. Returns it."""
        base = self.bases.pop(0)
        if self.start:
            # The blocks of another delta begin elsewhere: what is there already, only the whole file goes on from.
            self.bases.clear()
        return base
