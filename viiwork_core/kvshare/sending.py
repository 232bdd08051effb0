"""Sending: a file that an engine has just saved goes, sealed, to the member that its session may move to next."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import anyio
import anyio.abc
import anyio.to_thread

from viiwork_core.clock import Clock
from viiwork_core.errors import CacheRefused, ViiworkError
from viiwork_core.kvshare.sealing import BLOCK, ReplicaHeader, ReplicaLabel, measure, seal

Target = TypeVar("Target")


def describe(path: Path, label: ReplicaLabel) -> ReplicaHeader:
    """The header of a saved file. Blocking: reads it whole. Raises CacheRefused when it is empty, and OSError."""
    length, digest = measure(path)
    if not length:
        raise CacheRefused("the engine saved an empty file")
    fields = {name: getattr(label, name) for name in ReplicaLabel.__struct_fields__}
    return ReplicaHeader(**fields, length=length, blake3=digest)


class SealedFile:
    """The sealed stream of one file, to iterate once. Made by `sealed_file`.

    Not an async generator: an HTTP client may still be reading in a task of its own when `aclose` is called, and a
    generator refuses that. Here a read under way ends first, and what is asked for later finds the end, which the
    receiver takes for what it is, a stream cut short.
    """

    def __init__(self, frames: Generator[bytes, None, None]) -> None:
        self.sent = 0
        """Bytes handed out so far."""

        self._frames = frames
        self._lock = threading.Lock()

    def __aiter__(self) -> SealedFile:
        return self

    async def __anext__(self) -> bytes:
        frame = await anyio.to_thread.run_sync(self._next)
        if frame is None:
            raise StopAsyncIteration
        self.sent += len(frame)
        return frame

    async def aclose(self) -> None:
        """Close the file. May be called again."""
        # Handed to the thread before anything can cancel the wait for it.
        closed = asyncio.get_running_loop().run_in_executor(None, self._close)
        with anyio.CancelScope(shield=True):
            await asyncio.shield(closed)

    def _next(self) -> bytes | None:
        with self._lock:
            return next(self._frames, None)

    def _close(self) -> None:
        with self._lock:
            self._frames.close()


def sealed_file(path: Path, key: bytes, header: ReplicaHeader) -> SealedFile:
    """The sealed stream of a file, read and encrypted in threads, one block ahead at most.

    Iterating raises CacheRefused when the file is no longer the one that the header was made from, and OSError. Close
    it with `contextlib.aclosing`.
    """
    return SealedFile(seal(key, header, _blocks(path, header.length)))


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
    """From the start of hashing to the target's answer; 0 for a save that was never started."""


@dataclass(slots=True)
class SendCounts:
    """Since the start of the node."""

    sent: int = 0
    failed: int = 0
    dropped: int = 0
    """Replaced by a newer turn, or given up for want of room, before they started."""

    bytes: int = 0
    """Handed to the network, failed transfers too."""


@dataclass(slots=True)
class _Transfer(Generic[Target]):
    save: Save[Target]
    error: str | None = "the node stops"
    stream: SealedFile | None = None


Put = Callable[[Target, AsyncIterator[bytes]], Awaitable[None]]
"""Sends a stream to a target and returns once the target has accepted it. Raises ViiworkError or OSError."""


class Sender(Generic[Target]):
    """Sends saves: one at a time of each session, `parallel` at a time in all, the newest turn of each.

    A newer save replaces one that waits; one under way is left to finish. Saves that wait or are under way hold at most
    `max_bytes` of disk: the longest waiting is given up first. Lives on one loop. `ended` is called on that loop once
    for every offered save. `key`: the key, or what tells the one in use when a send begins.
    """

    def __init__(
        self,
        put: Put[Target],
        key: bytes | Callable[[], bytes],
        clock: Clock,
        *,
        max_bytes: int,
        parallel: int = 2,
        timeout: float = 120.0,
        ended: Callable[[Delivery[Target]], None] = lambda _: None,
    ) -> None:
        self.counts = SendCounts()
        self._put, self._clock = put, clock
        self._key: Callable[[], bytes] = (lambda: key) if isinstance(key, bytes) else key
        self._max_bytes, self._parallel, self._timeout = max_bytes, parallel, timeout
        self._ended = ended
        self._waiting: dict[tuple[str, str], Save[Target]] = {}
        """By (model, session), the longest waiting first."""

        self._running: dict[tuple[str, str], Save[Target]] = {}
        self._discarded: list[Path] = []
        """Files of dropped saves, which `run` deletes in a thread."""

        self._changed = asyncio.Event()

    def offer(self, save: Save[Target]) -> None:
        """Take over a save. Returns at once; `run` does the work. Never raises."""
        session = (save.label.model, save.label.session)
        known = self._waiting.get(session) or self._running.get(session)
        if known is not None and known.label.turn >= save.label.turn:
            self._drop(save, "a save of a turn as new is on its way already")
            return
        if (waiting := self._waiting.pop(session, None)) is not None:
            self._drop(waiting, "a newer turn was saved")
        self._waiting[session] = save
        self._bound()
        self._changed.set()

    async def run(self) -> None:
        """Send what is offered, until cancelled; then every file that is left is deleted."""
        try:
            async with anyio.create_task_group() as group:
                while True:
                    self._changed = asyncio.Event()
                    self._start(group)
                    await self._delete_discarded()
                    await self._changed.wait()
        finally:
            for save in self._waiting.values():
                self._drop(save, "the node stops")
            self._waiting.clear()
            with anyio.CancelScope(shield=True):
                await self._delete_discarded()

    def _bound(self) -> None:
        held = sum(save.bytes for save in (*self._waiting.values(), *self._running.values()))
        for session, save in list(self._waiting.items()):
            if held <= self._max_bytes:
                return
            held -= save.bytes
            self._drop(self._waiting.pop(session), "saves that wait to be sent are over their room")

    def _start(self, group: anyio.abc.TaskGroup) -> None:
        for session in [session for session in self._waiting if session not in self._running]:
            if len(self._running) >= self._parallel:
                return
            save = self._running[session] = self._waiting.pop(session)
            group.start_soon(self._transfer, session, _Transfer(save))

    async def _transfer(self, session: tuple[str, str], transfer: _Transfer[Target]) -> None:
        started = self._clock.monotonic()
        try:
            await self._send(transfer)
        finally:
            del self._running[session]
            self._discarded.append(transfer.save.path)
            self._finish(transfer, self._clock.monotonic() - started)
            self._changed.set()

    async def _send(self, transfer: _Transfer[Target]) -> None:
        save = transfer.save
        with anyio.move_on_after(self._timeout) as scope:
            try:
                header = await anyio.to_thread.run_sync(describe, save.path, save.label)
                transfer.stream = sealed_file(save.path, self._key(), header)
                async with aclosing(transfer.stream):
                    await self._put(save.target, transfer.stream)
                transfer.error = None
            except (ViiworkError, OSError) as failure:
                transfer.error = str(failure) or type(failure).__name__
        if scope.cancelled_caught:
            transfer.error = f"not accepted within {self._timeout:.0f} s"

    def _finish(self, transfer: _Transfer[Target], seconds: float) -> None:
        sent = transfer.stream.sent if transfer.stream else 0
        self.counts.bytes += sent
        if transfer.error is None:
            self.counts.sent += 1
        else:
            self.counts.failed += 1
        self._ended(Delivery(transfer.save, transfer.error, sent, seconds))

    def _drop(self, save: Save[Target], reason: str) -> None:
        self.counts.dropped += 1
        self._discarded.append(save.path)
        self._ended(Delivery(save, reason, 0, 0.0))

    async def _delete_discarded(self) -> None:
        paths = list(self._discarded)
        if paths:
            await anyio.to_thread.run_sync(_delete, paths)
            # Only now: a cancellation before leaves them to the last call.
            del self._discarded[: len(paths)]


def _blocks(path: Path, length: int) -> Iterator[bytes]:
    with path.open("rb", buffering=0) as file:
        left = length
        while block := file.read(BLOCK):
            left -= len(block)
            if left < 0:
                break
            yield block
    if left:
        raise CacheRefused(f"{path.name} changed while it was being sent")


def _delete(paths: list[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)
