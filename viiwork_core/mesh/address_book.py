"""Address book: where the members were that this node knew lately, kept over restarts in state_dir/members.json.

An address is dialled and nothing else: who answers there is let in on the same terms as anybody.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Final

import msgspec
import structlog

from viiwork_core.atomic_file import write_atomically
from viiwork_core.clock import Clock
from viiwork_core.mesh.member import Member, split_address

FILE: Final = "members.json"

MAX_ENTRIES: Final = 64
"""Members that are remembered, those seen last first. One that answers tells of all others."""

KEPT: Final = timedelta(days=30)
"""How long one that was not seen since is remembered."""

SAVE_S: Final = 5.0
"""Seconds between two writings, where something has changed."""

_log = structlog.get_logger("viiwork.mesh")


class Entry(msgspec.Struct, frozen=True):
    """Where a member was. A day is exact enough, and spares writings."""

    address: str
    """ip:port of its gossip."""

    seen: date
    """Last day on which it was a member, UTC."""


class _Saved(msgspec.Struct, frozen=True):
    """The file."""

    mesh: str
    """Name of the mesh that they were members of."""

    members: dict[str, Entry]


class AddressBook:
    """Entries by node name, so that a node that moves is remembered once. On one event loop."""

    def __init__(self, path: Path, clock: Clock, *, mesh: str) -> None:
        """`mesh`: the mesh's name. Members of another one are not remembered."""
        self._path = path
        self._mesh = mesh
        self._clock = clock
        self._entries: dict[str, Entry] = {}
        self._written: Mapping[str, Entry] = {}
        self._due = -math.inf

    def load(self) -> None:
        """Read what an earlier run left. Blocks. What cannot be read is logged, and what is no address left out."""
        try:
            saved = msgspec.json.decode(self._path.read_bytes(), type=_Saved)
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            _log.warning("the addresses of earlier members are not known", path=str(self._path), reason=str(error))
            return
        if saved.mesh != self._mesh:
            return
        self._written = saved.members
        self._keep({node: entry for node, entry in saved.members.items() if _is_address(entry.address)})

    def note(self, members: Iterable[Member]) -> None:
        """These are members now."""
        today = self._today()
        self._keep({**self._entries, **{member.node: Entry(member.gossip, today) for member in members}})

    def addresses(self) -> tuple[str, ...]:
        """ip:port each, of those seen last first."""
        return tuple(entry.address for entry in self._entries.values())

    async def save(self) -> None:
        """Write the file, if it has changed and was not written just before."""
        now = self._clock.monotonic()
        if self._entries == self._written or now < self._due:
            return
        # Also where it fails: it is tried again with the next change.
        self._written, self._due = self._entries, now + SAVE_S
        await asyncio.to_thread(self._write, self._entries)

    def _write(self, entries: Mapping[str, Entry]) -> None:
        try:
            saved = msgspec.json.encode(_Saved(self._mesh, dict(entries)))
            write_atomically(self._path, msgspec.json.format(saved) + b"\n")
        except OSError as error:
            _log.warning("the members' addresses are not written down", path=str(self._path), reason=str(error))

    def _keep(self, entries: Mapping[str, Entry]) -> None:
        """Of these, what is neither old nor too much."""
        today = self._today()
        young = [(node, entry) for node, entry in entries.items() if today - entry.seen <= KEPT]
        # A day to come, left by a clock that was wrong, must not stand before all others for ever.
        young.sort(key=lambda one: min(one[1].seen, today), reverse=True)
        self._entries = dict(young[:MAX_ENTRIES])

    def _today(self) -> date:
        return datetime.fromtimestamp(self._clock.wall(), UTC).date()


def _is_address(text: str) -> bool:
    try:
        split_address(text)
    except ValueError:
        return False
    return True
