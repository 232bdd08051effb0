"""Sending: a file that an engine has just saved goes, sealed, to the member that its session may move to next.

What the member acknowledged last is kept, and the next turn goes as a delta against it, or against the replica that
came from that member.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, aclosing, closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

from viiwork_core.clock import Clock
from viiwork_core.errors import BackendFailed, BaseMissing, CacheRefused, ResumeFrom, ViiworkError
from viiwork_core.kvshare.bases import Base, Bases, standing
from viiwork_core.kvshare.delta import Layout, delta_blocks
from viiwork_core.kvshare.pace import Limits, Pace
from viiwork_core.kvshare.replicas import ReplicaStore
from viiwork_core.kvshare.sealing import TransferHeader
from viiwork_core.kvshare.streams import SealedFile, describe, sealed_delta, sealed_file
from viiwork_core.kvshare.transfers import Delivery, Save, Target, Transfer

__all__ = ["Delivery", "LinkCounts", "Save", "SendCounts", "Sender"]

TRIES = 3
"""How often a connection may break before a transfer is given up."""

PAUSE_S = 0.5
"""Before the next try: the target is to notice as well."""

SLOWEST = 10e6
"""Bytes/s below which a transfer that has no limit is given up."""

FORGOTTEN = "the session was forgotten"
MOST_LINKS = 1024
"""Targets that are counted apart; the one that was first sent to goes first."""


@dataclass(slots=True)
class LinkCounts:
    """To one target, since the start of the node."""

    sent: int = 0
    failed: int = 0
    bytes: int = 0
    under_way: int = 0
    """Now."""


@dataclass(slots=True)
class SendCounts:
    """Since the start of the node."""

    sent: int = 0
    failed: int = 0
    dropped: int = 0
    """Replaced by a newer turn, or given up for want of room, before they started."""

    bytes: int = 0
    """Handed to the network, failed transfers too."""

    links: dict[str, LinkCounts] = field(default_factory=dict)
    """By the target's name."""


Put = Callable[[Target, SealedFile], Awaitable[None]]
"""Sends a stream to a target and returns once the target has accepted it. Raises ViiworkError or OSError, among them
BackendFailed for a connection that broke, and BaseMissing and ResumeFrom where the target says so."""


class Sender(Generic[Target]):
    """Sends saves: one at a time of each session, and of each model as many at a time as `limits` says for it.

    A newer save replaces one that waits; one under way is left to finish. Saves that wait or are under way, and the
    files that targets have acknowledged, hold at most `max_bytes` of disk: first go those that were acknowledged, then
    the longest waiting. Lives on one loop. `ended` is called on that loop once for every offered save. `key`: the key,
    or what tells the one in use when a send begins. `layout` reads a file's segments, in a thread. `name` tells a
    target from another, over restarts. `store`: what came from targets, for caches that go back.
    """

    def __init__(
        self,
        put: Put[Target],
        key: bytes | Callable[[], bytes],
        clock: Clock,
        *,
        max_bytes: int,
        limits: Callable[[str], Limits] = lambda _: Limits(),
        layout: Callable[[str, Path], Layout] = lambda _, __: (),
        name: Callable[[Target], str] = str,
        store: ReplicaStore | None = None,
        timeout: float = 120.0,
        ended: Callable[[Delivery[Target]], None] = lambda _: None,
    ) -> None:
        self.counts = SendCounts()
        self._put, self._clock = put, clock
        self._key: Callable[[], bytes] = (lambda: key) if isinstance(key, bytes) else key
        self._max_bytes, self._limits, self._timeout = max_bytes, limits, timeout
        self._layout, self._name, self._store, self._ended = layout, name, store, ended
        self._bases = Bases()
        self._paces: dict[str, Pace] = {}
        self._waiting: dict[tuple[str, str], Save[Target]] = {}
        """By (model, session), the longest waiting first."""

        self._running: dict[tuple[str, str], Transfer[Target]] = {}
        self._discarded: list[Path] = []
        """Files of dropped saves, which `run` deletes in a thread."""

        self._changed = asyncio.Event()

    def offer(self, save: Save[Target]) -> None:
        """Take over a save. Returns at once; `run` does the work. Never raises."""
        session = (save.label.model, save.label.session)
        running = self._running.get(session)
        known = self._waiting.get(session) or (running.save if running else None)
        if known is not None and known.label.turn >= save.label.turn:
            self._drop(save, "a save of a turn as new is on its way already")
            return
        if (waiting := self._waiting.pop(session, None)) is not None:
            self._drop(waiting, "a newer turn was saved")
        self._waiting[session] = save
        self._bound()
        self._changed.set()

    def sent(self, header: TransferHeader) -> Path | None:
        """The file that a header names as its base, if it was sent from here and is still kept. Memory only."""
        base = self._bases.named(header.model, header.session, header.base) if header.base else None
        return base.path if base else None

    def forget(self, session: str) -> None:
        """Drop what is there of a session, and stop its transfers. Returns at once; `run` deletes the files."""
        self._discarded += self._bases.forget(session)
        for key in [key for key in self._waiting if key[1] == session]:
            self._drop(self._waiting.pop(key), FORGOTTEN)
        for transfer in self._running.values():
            if transfer.save.label.session == session:
                transfer.forgotten = True
                transfer.scope.cancel()
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
            self._discarded += self._bases.shrink(0)
            with anyio.CancelScope(shield=True):
                await self._delete_discarded()

    def _bound(self) -> None:
        held = sum(save.bytes for save in (*self._waiting.values(), *(one.save for one in self._running.values())))
        self._discarded += self._bases.shrink(max(0, self._max_bytes - held))
        for session, save in list(self._waiting.items()):
            if held <= self._max_bytes:
                return
            held -= save.bytes
            self._drop(self._waiting.pop(session), "saves that wait to be sent are over their room")

    def _start(self, group: anyio.abc.TaskGroup) -> None:
        for session in sorted(self._waiting.keys() - self._running.keys(), key=self._length):
            model = session[0]
            if sum(one == model for one, _ in self._running) >= self._limits(model).parallel:
                continue
            save = self._waiting.pop(session)
            name = self._name(save.target)
            transfer = self._running[session] = Transfer(save, (*session, name))
            self._link(name).under_way += 1
            group.start_soon(self._transfer, session, transfer)

    def _link(self, name: str) -> LinkCounts:
        links = self.counts.links
        if name not in links:
            idle = [known for known, one in links.items() if not one.under_way]
            for known in idle[: max(0, len(links) - MOST_LINKS + 1)]:
                del links[known]
            links[name] = LinkCounts()
        return links[name]

    def _length(self, session: tuple[str, str]) -> tuple[int, int]:
        """What is short goes first, then what waited longer: a whole file would hold up the deltas of all others."""
        save = self._waiting[session]
        key = (*session, self._name(save.target))
        returned = self._store.came_from(*key) if self._store else None
        there = max(self._bases.size(key), returned.header.length if returned else 0)
        return max(0, save.bytes - there), list(self._waiting).index(session)

    async def _transfer(self, session: tuple[str, str], transfer: Transfer[Target]) -> None:
        started, leases = self._clock.monotonic(), ExitStack()
        blake3: str | None = None
        try:
            transfer.bases = standing(self._bases.find(transfer.key), self._store, transfer.key, leases)
            blake3 = await self._send(transfer)
        finally:
            del self._running[session]
            self._keep(transfer, blake3)
            self._finish(transfer, self._clock.monotonic() - started)
            self._changed.set()
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(leases.close)

    def _keep(self, transfer: Transfer[Target], blake3: str | None) -> None:
        """The file that a target has acknowledged is what the next turn is a delta against; any other is deleted."""
        save = transfer.save
        if blake3 is None or transfer.forgotten:
            self._discarded.append(save.path)
            return
        base = Base(save.path, blake3, save.bytes, save.label.turn)
        self._discarded += self._bases.keep(transfer.key, base)
        self._bound()

    async def _send(self, transfer: Transfer[Target]) -> str | None:
        """The hash of a file that the target has taken; None: it has not."""
        save, seconds = transfer.save, self._seconds(transfer.save)
        transfer.scope.deadline = anyio.current_time() + seconds
        with transfer.scope:
            try:
                header = await anyio.to_thread.run_sync(describe, save.path, save.label)
                while (blake3 := await self._put_once(transfer, header)) is None:
                    pass
            except (ViiworkError, OSError) as failure:
                transfer.error = str(failure) or type(failure).__name__
            else:
                transfer.error = None
                return blake3
        if transfer.scope.cancelled_caught:
            transfer.error = FORGOTTEN if transfer.forgotten else f"not accepted within {seconds:.0f} s"
        return None

    def _seconds(self, save: Save[Target]) -> float:
        """How long a transfer may take: no link that is worth it is slower than that."""
        return self._timeout + save.bytes / min(SLOWEST, self._limits(save.label.model).bytes_per_s or SLOWEST)

    async def _put_once(self, transfer: Transfer[Target], header: TransferHeader) -> str | None:
        """One upload: the file's hash once the target has it, None when it is to be tried again, another way."""
        stream = await self._stream(transfer, header)
        try:
            async with aclosing(stream):
                await self._put(transfer.save.target, stream)
        except BaseMissing:
            if not transfer.bases:
                raise
            self._discarded += self._bases.drop(transfer.key, transfer.useless())
            return None
        except ResumeFrom as part:
            if part.offset == transfer.start or part.offset > header.length:
                raise
            transfer.start = part.offset
            return None
        except BackendFailed:
            transfer.broken += 1
            never_began = not stream.sent and transfer.broken == 1
            if never_began or transfer.broken >= TRIES:
                raise
            transfer.start = None
            await anyio.sleep(PAUSE_S)
            return None
        finally:
            transfer.sent += stream.sent
        if stream.blake3 is None:
            raise CacheRefused("the target has answered before all was sent")
        return stream.blake3

    async def _stream(self, transfer: Transfer[Target], header: TransferHeader) -> SealedFile:
        """The file as a delta where there is something for it to stand on, else whole; or the question for its start.

        That is the file from its end on, a header and no block. A fast link would carry all of the file before the
        target's answer is read.
        """
        save, pace = transfer.save, self._pace(transfer.save.label.model)
        while transfer.bases and transfer.start is not None:
            base = transfer.bases[0]
            if delta := await anyio.to_thread.run_sync(self._delta, save, base, transfer.start):
                header = msgspec.structs.replace(header, start=transfer.start, base=base.blake3)
                return sealed_delta(save.path, self._key(), header, delta, pace)
            transfer.useless()
        start = header.length if transfer.start is None else transfer.start
        header = msgspec.structs.replace(header, start=start)
        return sealed_file(save.path, self._key(), header, pace)

    def _delta(self, save: Save[Target], base: Base, start: int) -> Generator[bytes, None, None] | None:
        """In a thread. None: the base is gone, as it is once its engine has started anew, or cannot be read; or no
        block of the delta begins there, because what the target has is not from the same delta."""
        model = save.label.model
        try:
            layout, base_layout = self._layout(model, save.path), self._layout(model, base.path)
            if base.path.stat().st_size != base.bytes:
                return None
            blocks = delta_blocks(save.path, layout, base.path, base_layout, start=start)
            first = next(blocks, b"")
        except (ViiworkError, OSError):
            return None
        return _begun(first, blocks)

    def _pace(self, model: str) -> Pace:
        """One for all transfers of the model."""
        if model not in self._paces:
            self._paces[model] = Pace(self._limits(model).bytes_per_s, self._clock)
        return self._paces[model]

    def _finish(self, transfer: Transfer[Target], seconds: float) -> None:
        link = self._link(self._name(transfer.save.target))
        link.under_way -= 1
        for counts in (self.counts, link):
            counts.bytes += transfer.sent
            if transfer.error is None:
                counts.sent += 1
            else:
                counts.failed += 1
        self._ended(Delivery(transfer.save, transfer.error, transfer.sent, seconds))

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


def _begun(first: bytes, rest: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
    with closing(rest):
        yield first
        yield from rest


def _delete(paths: list[Path]) -> None:
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)
