"""Moving: an engine's cache to a file, and a file to an engine's cache. On the control loop, each under a deadline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread

from viiwork_core.clock import Clock
from viiwork_core.contracts.cache import CacheFile, CacheTransfer, Saved, SessionRef
from viiwork_core.errors import CacheRefused, ViiworkError
from viiwork_core.kvshare.planner import MOVE_S, check_count, worth
from viiwork_core.kvshare.replicas import Replica, ReplicaStore
from viiwork_core.kvshare.shared_model import SharedModel, folder_of
from viiwork_core.kvshare.turns import Turn, Usage
from viiwork_core.registry.guard import Guard, attempt

ASK_S = 5.0


@dataclass(frozen=True, slots=True)
class SavedFile:
    """A turn's cache on disk, checked to be that turn's."""

    path: Path
    tokens: int
    bytes: int


class Moving:
    """Speaks to the cache transfers of the shared models, each behind its guard."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._caches: dict[str, CacheTransfer] = {}
        self._guards: dict[str, Guard] = {}

    def follow(self, models: Mapping[str, SharedModel]) -> None:
        """The models are these from now on. One with another cache transfer begins with a clean record."""
        for name, model in models.items():
            if self._caches.get(name) is not model.cache:
                self._caches[name] = model.cache
                self._guards[name] = Guard(f"cache transfer {model.cache.engine}", clock=self._clock)

    async def still(self, shared: SharedModel, turn: Turn) -> int | None:
        """What the engine says it holds of the session; None: it cannot say."""
        reservation = turn.reservation
        ref = SessionRef(turn.session, reservation.slot)
        try:
            spec = shared.spec(reservation)
            return await self._guards[reservation.model].call(
                "holds", ASK_S, lambda: shared.cache.holds(spec, reservation.address, ref)
            )
        except ViiworkError:
            return None

    async def restore(
        self, shared: SharedModel, turn: Turn, replica: Replica, store: ReplicaStore, within_s: float
    ) -> int:
        """Verify the replica, compare it with the prompt, restore it. Returns the tokens that the turn should reuse.

        Raises CacheRefused, also when `within_s` seconds are over, EngineRefused, EngineUnreachable or PluginError.
        """
        # The guard's own deadline is for a plugin that hangs. This one says nothing about the plugin.
        with anyio.move_on_after(within_s):
            return await self._restored(shared, turn, replica, store)
        raise CacheRefused(f"the import was given up after {within_s:.2g} s, in which the prompt is as well read anew")

    async def _restored(self, shared: SharedModel, turn: Turn, replica: Replica, store: ReplicaStore) -> int:
        reservation, cache, guard = turn.reservation, shared.cache, self._guards[turn.reservation.model]
        spec = shared.spec(reservation)
        path = folder_of(spec) / f"{turn.session}.restore"
        link = not cache.limits.refuses_links
        await anyio.to_thread.run_sync(partial(store.verified_copy, replica, path, link=link))
        try:
            file = await _read(cache, path)
            covered = await guard.call(
                "covers", ASK_S, lambda: cache.covers(spec, reservation.address, file, turn.path, turn.body)
            )
            promised = worth(replica.header.tokens, covered, extends_only=cache.limits.extends_only)
            ref = SessionRef(turn.session, reservation.slot)
            restored = await guard.call(
                "restore", MOVE_S, lambda: cache.restore(spec, reservation.address, ref, path.name)
            )
        finally:
            await deleted(path)
        return min(promised, restored)

    async def save(self, shared: SharedModel, turn: Turn, usage: Usage, number: int, within_s: float) -> SavedFile:
        """Save, and check that the file is this turn's. Raises as `restore` does; then no file is left."""
        reservation, cache = turn.reservation, shared.cache
        spec = shared.spec(reservation)
        path = folder_of(spec) / f"{turn.session}.{number}.save"
        ref = SessionRef(turn.session, reservation.slot)
        try:
            saved = await self._saved_within(
                within_s,
                lambda: self._guards[reservation.model].call(
                    "save", MOVE_S, lambda: cache.save(spec, reservation.address, ref, path.name)
                ),
            )
            file = await _read(cache, path)
            check_count(saved.tokens, file.tokens, usage)
        except BaseException:
            await deleted(path)
            raise
        return SavedFile(path, saved.tokens, saved.bytes)

    @staticmethod
    async def _saved_within(within_s: float, save: Callable[[], Awaitable[Saved]]) -> Saved:
        with anyio.move_on_after(within_s):
            return await save()
        raise CacheRefused(f"the save was given up after {within_s:.2g} s, more than a move would spare")


async def deleted(path: Path) -> None:
    """Delete a cache file, if it is there, also when the caller is cancelled: a large one keeps a disk busy."""
    with anyio.CancelScope(shield=True):
        await anyio.to_thread.run_sync(partial(path.unlink, missing_ok=True))


async def _read(cache: CacheTransfer, path: Path) -> CacheFile:
    """What a file says of itself. Raises CacheRefused, and PluginError for a plugin that fails over it."""
    reading = partial(attempt, f"reading a cache file of {cache.engine}", partial(cache.read, path))
    return await anyio.to_thread.run_sync(reading)
