"""Receiving: a sealed stream from another member becomes a replica in the store, or nothing at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import anyio
import anyio.to_thread

from viiwork_core.errors import CacheRefused, FingerprintMismatch
from viiwork_core.kvshare.arrivals import Arrival
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

    Raises CacheRefused (damaged, cut short, not newer, forgotten meanwhile), StoreFull, and whatever `accepts` or
    `chunks` raise. After any of them, and after a cancellation, nothing of the transfer is left.
    """
    opener = Opener(key, *previous)
    arrival: Arrival[Replica] | None = None
    try:
        async for piece in _gathered(chunks):
            blocks = await anyio.to_thread.run_sync(opener.feed, piece)
            if arrival is None and opener.header is not None:
                accepts(opener.header)
                arrival = store.begin(opener.header)
            if arrival is not None:
                await anyio.to_thread.run_sync(arrival.write, blocks)
        opener.finish()
        if arrival is None:
            raise CacheRefused("the replica was cut short on its way")
        return await anyio.to_thread.run_sync(arrival.commit)
    finally:
        if arrival is not None:
            # Handed to the thread before anything can cancel the wait for it.
            discarded = asyncio.get_running_loop().run_in_executor(None, arrival.discard)
            with anyio.CancelScope(shield=True):
                await asyncio.shield(discarded)


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
