"""Bases: the files that another member has as well, so that the next turn can go there as a delta.

There are two kinds: what the member acknowledged, which is kept here for that alone, and the replica that came from it,
which it keeps in the same way. So a cache that goes back to where it came from goes as a delta too.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from viiwork_core.errors import CacheRefused
from viiwork_core.kvshare.replicas import ReplicaStore

Key = tuple[str, str, str]
"""Model, session, and the member's name."""


@dataclass(frozen=True, slots=True)
class Base:
    """A file that a member has."""

    path: Path
    blake3: str
    bytes: int
    turn: int


class _Numbered(Protocol):
    @property
    def turn(self) -> int: ...


_One = TypeVar("_One", bound=_Numbered)


def newest_first(acknowledged: _One | None, returned: _One | None) -> list[_One]:
    """What a delta for a member may stand on, the best first: what it acknowledged, and what came from it."""
    both = [one for one in (returned, acknowledged) if one is not None]
    return sorted(both, key=lambda one: one.turn, reverse=True)


def standing(acknowledged: Base | None, store: ReplicaStore | None, key: Key, leases: ExitStack) -> list[Base]:
    """The same for files. A replica in the store, which came from that member, is leased: it may go at any time."""
    returned: Base | None = None
    if store is not None and (replica := store.came_from(*key)) is not None:
        with suppress(CacheRefused):  # it has just gone
            leases.enter_context(store.lease(replica))
            returned = Base(replica.path, replica.header.blake3, replica.header.length, replica.header.turn)
    return newest_first(acknowledged, returned)


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

    def named(self, model: str, session: str, blake3: str) -> Base | None:
        """The file of the session that has that hash, whichever member acknowledged it."""
        for key in [key for key in self._kept if key[:2] == (model, session)]:
            if self._kept[key].blake3 == blake3:
                return self.find(key)
        return None

    def keep(self, key: Key, base: Base) -> list[Path]:
        """In place of the one before."""
        # Turns are counted anew once a session was forgotten: the file may have the name of the one before.
        gone = [path for path in self.drop(key) if path != base.path]
        self._kept[key] = base
        self.bytes += base.bytes
        return gone

    def drop(self, key: Key, only: Base | None = None) -> list[Path]:
        """Keep none; `only`: unless it is another one than that."""
        base = self._kept.get(key)
        if base is None or only not in (None, base):
            return []
        del self._kept[key]
        self.bytes -= base.bytes
        return [base.path]

    def forget(self, session: str) -> list[Path]:
        """Keep none of a session."""
        return [path for key in list(self._kept) if key[1] == session for path in self.drop(key)]

    def shrink(self, room: int) -> list[Path]:
        """Keep `room` bytes at most."""
        gone: list[Path] = []
        for key in list(self._kept):
            if self.bytes <= room:
                break
            gone += self.drop(key)
        return gone
