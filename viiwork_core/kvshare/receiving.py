"""Receiving: a sealed stream from another member becomes a replica in the store, or nothing at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from viiwork_core.errors import BaseMissing, CacheRefused, FingerprintMismatch, StoreFull
from viiwork_core.kvshare.arrivals import Arrival
from viiwork_core.kvshare.rebuild import Rebuild
from viiwork_core.kvshare.replicas import Replica, ReplicaStore
from viiwork_core.kvshare.sealing import BLOCK, Opener, ReplicaHeader

AHEAD: Final = 4 * BLOCK
"""Bytes of a stream that are taken from the network while a thread is busy with those before them."""

SentFile = Callable[[ReplicaHeader], Path | None]
"""The file that this node has sent, if it is the one that a header names as its base; None: it is not kept."""


async def receive(
    chunks: AsyncIterator[bytes],
    *,
    key: bytes,
    previous: Sequence[bytes] = (),
    store: ReplicaStore,
    accepts: Callable[[ReplicaHeader], None],
    origin: str = "",
    sent: SentFile = lambda _: None,
) -> Replica:
    """Open a stream as it arrives and keep it as a replica when it is whole and right.

    `accepts` is called once on this loop, with the header that the first frame has proven and before anything is
    written; what it raises refuses the transfer. Decryption and disk work run in threads; at most twice AHEAD is held.

    `origin`: the member that sends it. `sent`: what this node sent itself, on which a cache that comes back may stand.
    `previous`: keys that are still believed while the mesh changes its secret.

    Raises CacheRefused (damaged, cut short, not newer, forgotten meanwhile), BaseMissing for a delta that cannot be
    carried out here, ResumeFrom, StoreFull, and whatever `accepts` or `chunks` raise. After any of them, and after a
    cancellation, nothing of the transfer is left, except where the stream broke off and the store keeps partials.
    """
    taking = _Taking(Opener(key, *previous), store, accepts, origin, sent)
    source = aiter(chunks)
    awaits = False
    try:
        while True:
            awaits = True
            chunk = await anext(source, None)
            awaits = False
            if chunk is None:
                return await taking.end()
            await taking.take(chunk)
    finally:
        await taking.leave(broken_off=awaits)


class _Taking:
    """A stream as it is taken: while a thread opens and writes one part, the loop gathers the next."""

    def __init__(
        self, opener: Opener, store: ReplicaStore, accepts: Callable[[ReplicaHeader], None], origin: str, sent: SentFile
    ) -> None:
        self._opener, self._store, self._accepts = opener, store, accepts
        self._origin, self._sent = origin, sent
        self._gathered: list[bytes] = []
        self._size = 0
        self._work: asyncio.Task[None] | None = None
        self._incoming: _Incoming | None = None

    async def take(self, chunk: bytes) -> None:
        """Once AHEAD bytes wait, this waits too. Raises what an earlier part came to."""
        self._gathered.append(chunk)
        self._size += len(chunk)
        busy = self._work is not None and not self._work.done()
        if self._size >= (AHEAD if busy else BLOCK):
            await self._pass_on()

    async def end(self) -> Replica:
        """The replica, now that the stream has ended."""
        await self._pass_on()
        await self._worked()
        self._opener.finish()
        if self._incoming is None:
            raise CacheRefused("the replica was cut short on its way")
        return await self._incoming.commit()

    async def leave(self, *, broken_off: bool) -> None:
        """Let go of everything that was not committed; `broken_off`: unless it can go on later."""
        # A task of its own, which no cancellation of this one ends.
        left = asyncio.create_task(self._left(broken_off))
        with anyio.CancelScope(shield=True):
            await asyncio.shield(left)

    async def _left(self, broken_off: bool) -> None:
        (failure,) = await asyncio.gather(self._rest(broken_off), return_exceptions=True)
        if self._incoming is not None:
            await self._incoming.leave(broken_off=broken_off and failure is None)

    async def _rest(self, broken_off: bool) -> None:
        """Wait for the thread; what is to go on later then has all that has come."""
        if broken_off and self._incoming is not None:
            await self._pass_on()
        await self._worked()

    async def _pass_on(self) -> None:
        await self._worked()
        pieces, self._gathered, self._size = self._gathered, [], 0
        if self._incoming is None:
            await self._begin(pieces)
        else:
            write = partial(self._incoming.write, self._opened(pieces))
            self._work = asyncio.create_task(anyio.to_thread.run_sync(write))

    async def _begin(self, pieces: list[bytes]) -> None:
        """Nothing is read ahead before the header is proven and accepted."""
        blocks = await anyio.to_thread.run_sync(lambda: list(self._opened(pieces)))
        if self._opener.header is not None:
            self._accepts(self._opener.header)
            self._incoming = _Incoming(self._store, self._opener.header, self._origin, self._sent)
            await anyio.to_thread.run_sync(self._incoming.write, blocks)

    def _opened(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            yield from self._opener.feed(piece)

    async def _worked(self) -> None:
        """Until the thread is done with its part. Raises what it came to."""
        if self._work is not None:
            await asyncio.shield(self._work)


class _Incoming:
    """A replica on its way in: where its blocks go, and for a delta what they are carried out on."""

    def __init__(self, store: ReplicaStore, header: ReplicaHeader, origin: str, sent: SentFile) -> None:
        """Memory only, save for opening the base. Raises as `ReplicaStore.begin` does, BaseMissing and ResumeFrom."""
        self._store, self._header, self._origin = store, header, origin
        self._rebuild: Rebuild | None = None
        with ExitStack() as stack:
            if header.base is not None:
                # What this node sent may be deleted from here on: once it is open that does no harm.
                self._rebuild = Rebuild(sent(header) or stack.enter_context(store.base(header)))
                stack.callback(self._rebuild.close)
            self._arrival = store.partials.take(header.kept, header.start) or self._begun()
            self._held = stack.pop_all()

    def _begun(self) -> Arrival[Replica]:
        try:
            return self._store.begin(self._header.kept, self._origin)
        except StoreFull as error:
            if self._header.base is None:
                raise
            # A whole file may take the place of the one that the delta stands on.
            raise BaseMissing(error.message, remedy=error.remedy) from error

    def write(self, blocks: Iterable[bytes]) -> None:
        """Blocking. Raises as `Arrival.write` does, and BaseMissing."""
        self._arrival.write(self._rebuild.pieces(blocks) if self._rebuild else blocks)

    async def commit(self) -> Replica:
        """Raises as `Arrival.commit` does; for a delta, whose base may have rotted, BaseMissing."""
        try:
            replica = await anyio.to_thread.run_sync(self._arrival.commit)
        except CacheRefused as error:
            if self._header.base is None:
                raise
            raise BaseMissing(f"the delta did not make the file: {error.message}") from error
        self._store.partials.settle(replica.header)
        return replica

    async def leave(self, *, broken_off: bool) -> None:
        """Let go of everything that was not committed; `broken_off`: unless it can go on later."""
        kept = broken_off and self._store.partials.keep(self._arrival)
        # Handed to the thread before anything can cancel the wait for it.
        left = asyncio.get_running_loop().run_in_executor(None, self._let_go, kept)
        with anyio.CancelScope(shield=True):
            await asyncio.shield(left)

    def _let_go(self, kept: bool) -> None:
        if not kept:
            self._arrival.discard()
        self._held.close()


def require_same(header: ReplicaHeader, *, group: str | None, fingerprint: str | None) -> None:
    """Compare a header with this node's own backend of the model. For `accepts`.

    `group` and `fingerprint` are None when the model's caches are not shared here. Raises FingerprintMismatch, naming
    what differs.
    """
    if group is None or fingerprint is None:
        raise FingerprintMismatch(f"the caches of {header.model} are not shared on this member")
    if header.group != group:
        raise FingerprintMismatch(f"{header.model} is in kv_share group {group} here, the replica is of {header.group}")
    if header.fingerprint != fingerprint:
        raise FingerprintMismatch(
            f"{header.model} has another fingerprint here",
            remedy="give both members the same model file, engine build and cache settings",
        )
