"""Bases: the files that other members have acknowledged, kept here so that the next turn can go as a delta."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

Key = tuple[str, str, str]
"""Model, session, and the member's name."""


@dataclass(frozen=True, slots=True)
class Base:
    """A file that a member has."""

    path: Path
    blake3: str
    bytes: int


class Bases:
    """At most one of each session and member, the least recently used dropped first. Memory only.

    What is dropped is returned, for the caller to delete its file.
    """

    def __init__(self) -> None:
        self._kept: dict[Key, Base] = {}
        """In the order of use, oldest first."""

        self.bytes = 0

    def find(self, key: Key) -> Base | None:
        """What the member acknowledged last of the session, if that is still kept."""
        if (base := self._kept.pop(key, None)) is not None:
            self._kept[key] = base
        return base

    def size(self, key: Key) -> int:
        """Bytes of what `find` would give; 0: nothing. No use."""
        base = self._kept.get(key)
        return 0 if base is None else base.bytes

    def keep(self, key: Key, base: Base) -> list[Path]:
        """In place of the one before."""
        # Turns are counted anew once a session was forgotten: the file may have the name of the one before.
        gone = [path for path in self.drop(key) if path != base.path]
        self._kept[key] = base
        self.bytes += base.bytes
        return gone

    def drop(self, key: Key) -> list[Path]:
        """Keep none."""
        base = self._kept.pop(key, None)
        if base is None:
            return []
        self.bytes -= base.bytes
        return [base.path]

    def shrink(self, room: int) -> list[Path]:
        """Keep `room` bytes at most."""
        gone: list[Path] = []
        for key in list(self._kept):
            if self.bytes <= room:
                break
            gone += self.drop(key)
        return gone
