"""Forgotten sessions: a tombstone for each, so that what a member kept while it was away does not come back.

A tombstone is the session's key and the newest turn that was known when it was forgotten. Up to that turn nothing of it
is taken any more; a later turn is the session going on. No clock of another machine takes part: a tombstone's age is
counted in hours that nodes ran.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from viiwork_core.atomic_file import write_atomically
from viiwork_core.errors import BackendFailed, ConfigError, ViiworkError

FILE: Final = "forgotten.json"
LIMIT: Final = 4096
"""Tombstones, the newest: some 60 bytes each."""

HOURS: Final = 30 * 24
"""After which a tombstone goes: who was away for longer meets the session again."""

Session = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
TurnNumber = Annotated[int, Meta(ge=0, le=1 << 40)]


class Tombstone(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A forgotten session."""

    turn: TurnNumber
    hours: Annotated[int, Meta(ge=0, le=1 << 40)] = 0
    """For which nodes have had it while they ran."""


class _Text(msgspec.Struct, frozen=True):
    forgotten: Annotated[dict[Session, Tombstone], Meta(max_length=2 * LIMIT)]
    v: int = 1


class Forgotten:
    """A table of tombstones by session. A value: each change makes another one."""

    def __init__(self, tombstones: Mapping[str, Tombstone] | None = None) -> None:
        """Of more than LIMIT the youngest are kept."""
        found = tombstones or {}
        if len(found) > LIMIT:
            found = dict(sorted(found.items(), key=lambda pair: (pair[1].hours, pair[0]))[:LIMIT])
        self._tombstones = found

    def __iter__(self) -> Iterator[str]:
        return iter(self._tombstones)

    def __len__(self) -> int:
        return len(self._tombstones)

    def turn(self, session: str) -> int | None:
        """The turn up to which a session is forgotten; None: it is not."""
        found = self._tombstones.get(session)
        return None if found is None else found.turn

    @cached_property
    def digest(self) -> str:
        """Equal for equal sessions and turns, whatever their ages."""
        told = sorted((session, one.turn) for session, one in self._tombstones.items())
        return hashlib.blake2b(msgspec.json.encode(told), digest_size=8).hexdigest()

    def with_one(self, session: str, turn: int) -> Forgotten:
        """The session is forgotten now, up to that turn at least."""
        turn = max(turn, self.turn(session) or 0)
        return Forgotten({**self._tombstones, session: Tombstone(turn)})

    def merged(self, other: Forgotten) -> Forgotten:
        """With what another node has forgotten: of two tombstones the later turn counts, of equal ones the older."""
        both = dict(self._tombstones)
        for session, theirs in other._tombstones.items():
            ours = both.get(session)
            if theirs.hours >= HOURS or (ours is not None and ours.turn > theirs.turn):
                continue
            hours = max(ours.hours, theirs.hours) if ours is not None and ours.turn == theirs.turn else theirs.hours
            both[session] = Tombstone(theirs.turn, hours)
        return Forgotten(both)

    def news(self, before: Forgotten) -> tuple[str, ...]:
        """The sessions that `before` knew nothing of, or an earlier turn."""
        known = {session: before.turn(session) for session in self._tombstones}
        return tuple(
            session for session, one in self._tombstones.items() if (turn := known[session]) is None or turn < one.turn
        )

    def older(self) -> Forgotten:
        """An hour has passed."""
        aged = {session: Tombstone(one.turn, one.hours + 1) for session, one in self._tombstones.items()}
        return Forgotten({session: one for session, one in aged.items() if one.hours < HOURS})

    def encode(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(_Text(dict(self._tombstones)))

    @classmethod
    def decode(cls, raw: bytes) -> Forgotten:
        """Read what `encode` wrote, here or at a member. Raises BackendFailed."""
        try:
            return cls(msgspec.json.decode(raw, type=_Text).forgotten)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BackendFailed(f"the list of forgotten sessions is malformed: {str(error)[:200]}") from None


class ForgottenFile:
    """The table on disk, written whole. Both methods block."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE

    def load(self) -> Forgotten:
        """Empty when there is no file. Raises ConfigError for one that cannot be read."""
        try:
            return Forgotten.decode(self.path.read_bytes())
        except FileNotFoundError:
            return Forgotten()
        except (OSError, ViiworkError) as error:
            raise ConfigError(
                f"{self.path} cannot be read: {error}",
                remedy="move it away: this node then takes the forgotten sessions of the other members",
            ) from error

    def save(self, table: Forgotten) -> None:
        """Raises ViiworkError; then the old one is still there."""
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self.path, table.encode() + b"\n")
        except OSError as error:
            what = f"what is forgotten cannot be written to {self.path}: {error.strerror}"
            raise ViiworkError(what, remedy="make room there, or make it writable") from error
