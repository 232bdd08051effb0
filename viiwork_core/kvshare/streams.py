"""Streams: a file as sealed frames, read, hashed and encrypted in threads while it goes out."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from itertools import islice
from pathlib import Path

import anyio
import anyio.to_thread
from blake3 import blake3

from viiwork_core.errors import CacheRefused
from viiwork_core.kvshare.pace import Pace
from viiwork_core.kvshare.sealing import BLOCK, PART, ReplicaLabel, TransferHeader, measure, seal

BATCH = BLOCK // PART
"""Frames that are made in one go where HTTP carries them: each change of thread costs a wait for a core, a millisecond
and more where others want it too."""

Frames = Generator[memoryview, None, None]
"""Pieces of a sealed stream, each valid until the next one is asked for."""


def describe(path: Path, label: ReplicaLabel) -> TransferHeader:
    """The header of a saved file. Blocking. Raises CacheRefused when it is empty, and OSError."""
    length = path.stat().st_size
    if not length:
        raise CacheRefused("the engine saved an empty file")
    fields = {name: getattr(label, name) for name in ReplicaLabel.__struct_fields__}
    return TransferHeader(**fields, length=length)


class SealedFile:
    """The sealed stream of one file, to go out once. Made by `sealed_file` and `sealed_delta`.

    Either one thread does it all, with `pour`, or an HTTP client iterates: while one batch of frames goes out, a thread
    makes the next.

    Not an async generator: an HTTP client may still be reading in a task of its own when `aclose` is called, and a
    generator refuses that. Here a read under way ends first, and what is asked for later finds the end, which the
    receiver takes for what it is, a stream cut short.
    """

    def __init__(self, make: Callable[[SealedFile], Frames], pace: Pace | None = None) -> None:
        """`make` is called once; what it gives sets `blake3`."""
        self.sent = 0
        """Bytes handed out so far."""

        self.blake3: str | None = None
        """Of the whole file, once all of it was read."""

        self._frames, self._pace = make(self), pace
        self._held: memoryview | None = None
        """A frame that was not taken."""

        self._lock = threading.Lock()
        self._batch: asyncio.Task[bytes] | None = None
        """The one in the making; empty once there are no more."""

        self._over = False

    def __aiter__(self) -> SealedFile:
        return self

    async def __anext__(self) -> bytes:
        if self._over:
            raise StopAsyncIteration
        # Shielded: who asks may give up, and the thread goes on.
        batch = await asyncio.shield(self._batch or self._make())
        if self._over or not batch:
            self._over = True
            raise StopAsyncIteration
        self._make()
        if self._pace is not None:
            await self._pace.pass_on(len(batch))
        self.sent += len(batch)
        return batch

    def pour(self, out: Callable[[memoryview, float], bool]) -> None:
        """Hand out one frame after the other, each with the seconds to wait before it, until `out` wants no more.

        May be called again when `out` has failed: the frame that it did not take comes first. Blocking. Raises what
        iterating does, and what `out` raises.
        """
        with self._lock:
            while frame := self._held or self._frame():
                self._held = frame
                if not out(frame, self._pace.wait_s(len(frame)) if self._pace else 0.0):
                    return
                self._held = None
                self.sent += len(frame)

    def _frame(self) -> memoryview | None:
        """The next one; None: there are no more."""
        try:
            return next(self._frames, None)
        except OSError as error:
            raise CacheRefused(f"the saved file cannot be read: {error.strerror}") from error

    def _make(self) -> asyncio.Task[bytes]:
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

    def _next(self) -> bytes:
        with self._lock:
            frames = islice(iter(self._frame, None), BATCH)
            return b"".join(bytes(frame) for frame in frames)

    def _close(self) -> None:
        with self._lock:
            self._frames.close()


def sealed_file(path: Path, key: bytes, header: TransferHeader, pace: Pace | None = None) -> SealedFile:
    """The sealed stream of a file from the header's start on.

    What takes it out raises CacheRefused when the file cannot be read, or is no longer as long as the header says.
    Close it with `contextlib.aclosing`.
    """

    def frames(stream: SealedFile) -> Frames:
        hasher = blake3()

        def digest() -> bytes:
            stream.blake3 = hasher.hexdigest()
            return hasher.digest()

        with closing(_parts(path, header, hasher)) as parts:
            yield from seal(key, header, parts, digest)

    return SealedFile(frames, pace)


def sealed_delta(
    path: Path, key: bytes, header: TransferHeader, delta: Generator[bytes, None, None], pace: Pace | None = None
) -> SealedFile:
    """The sealed stream of a file's delta against the header's base. As `sealed_file`."""

    def frames(stream: SealedFile) -> Frames:
        def digest() -> bytes:
            length, stream.blake3 = measure(path)
            _require(length == header.length, path)
            return bytes.fromhex(stream.blake3)

        with closing(delta):
            yield from seal(key, header, delta, digest)

    return SealedFile(frames, pace)


def _parts(path: Path, header: TransferHeader, hasher: blake3) -> Frames:
    """The file from the header's start on, and all of it through the hasher. Each part is valid until the next."""
    with path.open("rb", buffering=0) as file:
        for part in _read(file, header.start):
            hasher.update(part)
        for part in _read(file, header.length - header.start):
            hasher.update(part)
            yield part
        _require(file.tell() == header.length and not file.read(1), path)


def _read(file: io.FileIO, left: int) -> Iterator[memoryview]:
    """So many bytes, or as many as there are."""
    buffer = memoryview(bytearray(PART))
    while got := file.readinto(buffer[: min(left, PART)]):
        left -= got
        yield buffer[:got]


def _require(unchanged: bool, path: Path) -> None:
    if not unchanged:
        raise CacheRefused(f"{path.name} changed while it was being sent")
