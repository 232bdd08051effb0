"""Streams: a file as sealed frames, read and encrypted in threads while it goes out."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Generator, Iterator
from itertools import islice
from pathlib import Path

import anyio
import anyio.to_thread

from viiwork_core.errors import CacheRefused
from viiwork_core.kvshare.pace import Pace
from viiwork_core.kvshare.sealing import BLOCK, ReplicaHeader, ReplicaLabel, measure, seal

BATCH = 4
"""Frames that are made in one go: each change of thread costs a wait for a core, a millisecond and more where others
want it too."""


def describe(path: Path, label: ReplicaLabel) -> ReplicaHeader:
    """The header of a saved file. Blocking: reads it whole. Raises CacheRefused when it is empty, and OSError."""
    length, digest = measure(path)
    if not length:
        raise CacheRefused("the engine saved an empty file")
    fields = {name: getattr(label, name) for name in ReplicaLabel.__struct_fields__}
    return ReplicaHeader(**fields, length=length, blake3=digest)


class SealedFile:
    """The sealed stream of one file, to iterate once. Made by `sealed_file`.

    While one batch of frames goes out, a thread makes the next.

    Not an async generator: an HTTP client may still be reading in a task of its own when `aclose` is called, and a
    generator refuses that. Here a read under way ends first, and what is asked for later finds the end, which the
    receiver takes for what it is, a stream cut short.
    """

    def __init__(self, frames: Generator[bytes, None, None], pace: Pace | None = None) -> None:
        self.sent = 0
        """Bytes handed out so far."""

        self._frames, self._pace = frames, pace
        self._lock = threading.Lock()
        self._ready = deque[bytes]()
        self._batch: asyncio.Task[list[bytes]] | None = None
        """The one in the making; without a frame once there are no more."""

        self._over = False

    def __aiter__(self) -> SealedFile:
        return self

    async def __anext__(self) -> bytes:
        while not (self._ready or self._over):
            await self._refill()
        if self._over:
            raise StopAsyncIteration
        frame = self._ready.popleft()
        if self._pace is not None:
            await self._pace.pass_on(len(frame))
        self.sent += len(frame)
        return frame

    async def _refill(self) -> None:
        making = self._batch or self._make()
        # Shielded: who asks may give up, and the thread goes on.
        batch = await asyncio.shield(making)
        if making is self._batch:
            self._ready.extend(batch)
            self._over |= not batch
            self._make()

    def _make(self) -> asyncio.Task[list[bytes]]:
        self._batch = asyncio.create_task(anyio.to_thread.run_sync(self._next))
        return self._batch

    async def aclose(self) -> None:
        """Close the file. May be called again."""
        self._over = True
        # Handed to the thread before anything can cancel the wait for it.
        closed = asyncio.get_running_loop().run_in_executor(None, self._close)
        with anyio.CancelScope(shield=True):
            await asyncio.shield(closed)
            if self._batch is not None:
                await asyncio.gather(self._batch, return_exceptions=True)

    def _next(self) -> list[bytes]:
        with self._lock:
            return list(islice(self._frames, BATCH))

    def _close(self) -> None:
        with self._lock:
            self._frames.close()


def sealed_file(path: Path, key: bytes, header: ReplicaHeader, pace: Pace | None = None) -> SealedFile:
    """The sealed stream of a file from the header's start on, read and encrypted in threads, two batches ahead at most.

    Iterating raises CacheRefused when the file is no longer the one that the header was made from, and OSError. Close
    it with `contextlib.aclosing`.
    """
    return SealedFile(seal(key, header, _blocks(path, header.start, header.length)), pace)


def _blocks(path: Path, start: int, length: int) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        file.seek(start)
        left = length - start
        while block := file.read(BLOCK):
            left -= len(block)
            if left < 0:
                break
            yield block
    if left:
        raise CacheRefused(f"{path.name} changed while it was being sent")
