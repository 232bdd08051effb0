"""The API keys that this node knows now: what the operator may write, and what comes from members."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from viiwork_core.clock import Clock
from viiwork_core.errors import InvalidRequest, KeyConflict, NotFound
from viiwork_core.mesh.book import Book
from viiwork_core.mesh.key_table import KEYS, MAX_NAMES, KeyWrite, limits
from viiwork_core.mesh.table import Change
from viiwork_core.mesh.table_store import TableStore
from viiwork_core.security.keys import MAX_KEYS, NAME, NAME_REMEDY, ApiKey

FILE: Final = "keys.json"
MAX_LIVE: Final = MAX_KEYS
"""Keys that count, as far as a write of this node's may bring them."""

_log = structlog.get_logger("viiwork.keys")


class KeyBook(Book[KeyWrite]):
    """On the data loop. A write is on disk before anybody sees it."""

    noun = "key"
    refusal = KeyConflict

    def __init__(self, state_dir: Path, *, node: str, clock: Clock, changed: Callable[[], None]) -> None:
        super().__init__(TableStore(state_dir / FILE, KEYS), node=node, clock=clock)
        self._changed_keys = changed

    @property
    def keys(self) -> list[ApiKey]:
        """Those that count, by name in order."""
        return [write.key(name) for name, write in self.table.live.items()]

    @property
    def closed(self) -> bool:
        """Whether there were keys, and nobody said that the API is to be open without them.

        Two operators may revoke the last two keys on two nodes at one time.
        """
        heads = [writes[0] for writes in self.table.entries.values()]
        return bool(heads) and not any(head.opens for head in heads)

    async def create(self, key: ApiKey) -> bool:
        """Let a key count; whether that is news. Raises InvalidRequest for what is no key, KeyConflict."""
        if not NAME.fullmatch(key.name):
            raise InvalidRequest(f"{key.name[:80]!r} is no name for a key", remedy=NAME_REMEDY)
        async with self._turn:
            head = self._head(key.name)
            if head is not None and not head.deleted:
                if head.key(key.name) == key:
                    return False
                remedy = "choose another name, or revoke that one first"
                raise KeyConflict(f"there is a key {key.name} already", remedy=remedy)
            self._check_room(key)
            await self._put(key.name, key)
        return True

    def _check_room(self, key: ApiKey) -> None:
        if len(self.table.live) >= MAX_LIVE:
            raise KeyConflict(f"there are {MAX_LIVE} keys already", remedy="revoke one")
        if key.name not in self.table.entries and len(self.table.entries) >= MAX_NAMES:
            what = f"{MAX_NAMES} names were used already, those of revoked keys among them"
            raise KeyConflict(what, remedy="use the name of a revoked key again")
        if any(other.digest == key.digest for other in self.keys):
            raise KeyConflict("this token is a key already", remedy="make another one")

    async def revoke(self, name: str, *, opens: bool = False, others: bool = False) -> None:
        """Let a key count no more. `opens`: also the last one, after which the API is open; `others`: there are keys
        elsewhere than in this book. Raises NotFound, KeyConflict.
        """
        async with self._turn:
            head = self._head(name)
            if head is None or head.deleted:
                raise self._unknown(name)
            last = len(self.table.live) == 1 and not others
            if last and not opens:
                raise KeyConflict(
                    f"{name} is the last key: without it the API would be open to whoever reaches it",
                    remedy="make another key first, or open the API with --open (open: true)",
                )
            await self._put(name, None, opens=opens and last)

    async def _put(self, name: str, key: ApiKey | None, *, opens: bool = False) -> None:
        what = {"opens": opens} if key is None else limits(key)
        await self._write(name, KeyWrite(*self._stamp(name), **what))

    def _unknown(self, name: str) -> NotFound:
        return NotFound(f"there is no key {name[:64]!r}", remedy="`viiwork key ls` lists them")

    def _told(self, change: Change[KeyWrite]) -> None:
        now = change.now
        if now is not None and change.changed:
            _log.info("key revoked" if now.deleted else "key", name=change.name, by=now.by)
        self._changed_keys()
