"""Receiving: a sealed stream from another member becomes a replica in the store, or nothing at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import ExitStack

import anyio
import anyio.to_thread

from viiwork_core.errors import BaseMissing, CacheRefused, FingerprintMismatch, StoreFull
from viiwork_core.kvshare.arrivals import Arrival
from viiwork_core.kvshare.rebuild import Rebuild
from viiwork_core.kvshare.replicas import Replica, ReplicaStore
from viiwork_core.kvshare.sealing import BLOCK, Opener, ReplicaHeader


async def receive(
    chunks: AsyncIterator[bytes],
    *,
    key: bytes,
    previous: Sequence[bytes] = (),
    store: ReplicaStore,
    accepts: Callable[[ReplicaHeader], None],
) -> Replica:
    """Open a stream as it arrives and keep it as a replica when it is whole and right.

    `accepts` is called once on this loop, with the header that the first frame has proven and before anything is
    written; what it raises refuses the transfer. Decryption and disk work run in threads; a few MiB are held.

    `previous`: keys that are still believed while the mesh changes its secret.

    Raises CacheRefused (damaged, cut short, not newer, forgotten meanwhile), BaseMissing for a delta that cannot be
    carried out here, ResumeFrom, StoreFull, and whatever `accepts` or `chunks` raise. After any of them, and after a
    cancellation, nothing of the transfer is left, except where the stream broke off and the store keeps partials.
    """
    opener = Opener(key, *previous)
    source = _gathered(chunks)
    incoming: _Incoming | None = None
    awaits = False
    try:
        while True:
            awaits = True
            piece = await anext(source, None)
            awaits = False
            if piece is None:
                break
            blocks = await anyio.to_thread.run_sync(opener.feed, piece)
            if incoming is None and opener.header is not None:
                accepts(opener.header)
                incoming = _Incoming(store, opener.header)
            if incoming is not None:
                await anyio.to_thread.run_sync(incoming.write, blocks)
        opener.finish()
        if incoming is None:
            raise CacheRefused("the replica was cut short on its way")
        return await incoming.commit()
    finally:
        if incoming is not None:
            await incoming.leave(broken_off=awaits)


class _Incoming:
    """A replica on its way in: where its blocks go, and for a delta what they are carried out on."""

    def __init__(self, store: ReplicaStore, header: ReplicaHeader) -> None:
        """Memory only, save for opening the base. Raises as `ReplicaStore.begin` does, BaseMissing and ResumeFrom."""
        self._store, self._header = store, header
        self._rebuild: Rebuild | None = None
        with ExitStack() as stack:
            if header.base is not None:
                self._rebuild = Rebuild(stack.enter_context(store.base(header)))
                stack.callback(self._rebuild.close)
            self._arrival = store.partials.take(header.kept, header.start) or self._begun()
            self._held = stack.pop_all()

    def _begun(self) -> Arrival[Replica]:
        try:
            return self._store.begin(self._header.kept)
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


async def _gathered(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytearray]:
    """The stream in pieces of about one block: network reads are small, and each piece costs a change of thread."""
    piece = bytearray()
    async for chunk in chunks:
        piece += chunk
        if len(piece) >= BLOCK:
            yield piece
            piece = bytearray()
    if piece:
        yield piece
