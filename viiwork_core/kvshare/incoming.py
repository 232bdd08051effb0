"""Incoming: a replica on its way into the store, whatever carries it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import anyio
import anyio.to_thread

from viiwork_core.errors import BaseMissing, FingerprintMismatch, ResumeFrom, StoreFull
from viiwork_core.kvshare.arrivals import Arrival, ContentWrong
from viiwork_core.kvshare.rebuild import Rebuild
from viiwork_core.kvshare.replicas import Replica, ReplicaStore
from viiwork_core.kvshare.sealing import Opener, TransferHeader

SentFile = Callable[[TransferHeader], Path | None]
"""The file that this node has sent, if it is the one that a header names as its base; None: it is not kept."""


@dataclass(frozen=True)
class Reception:
    """What replicas from one member are received with."""

    store: ReplicaStore
    accepts: Callable[[TransferHeader], None]
    """Called with a header that is proven, before anything is written; what it raises refuses the transfer."""

    origin: str = ""
    """The member that sends."""

    sent: SentFile = lambda _: None
    """What this node sent itself, on which a cache that comes back may stand."""

    def begin(self, opener: Opener) -> Incoming | Replica:
        """What a stream whose header is proven is to become; a Replica: it is here already, and only that was asked.

        Memory only, save for opening the base. Raises what `accepts` does, as `ReplicaStore.begin`, BaseMissing and
        ResumeFrom.
        """
        assert opener.header is not None, "the header is proven"
        self.accepts(opener.header)
        return self._stored(opener.header, opener.blake3) or Incoming(self, opener.header)

    def _stored(self, header: TransferHeader, blake3: str | None) -> Replica | None:
        """After an answer that was lost, the sender asks where to go on, and tells the hash of what it has sent."""
        replica = self.store.find(header.model, header.session) if header.start == header.length else None
        return replica if replica is not None and replica.header.blake3 == blake3 else None


class Incoming:
    """Where the blocks of a replica go, and for a delta what they are carried out on."""

    def __init__(self, reception: Reception, header: TransferHeader) -> None:
        self._store, self._header, self._origin = reception.store, header, reception.origin
        self._rebuild: Rebuild | None = None
        with ExitStack() as stack:
            if header.base is not None:
                # What this node sent may be deleted from here on: once it is open that does no harm.
                base = reception.sent(header) or stack.enter_context(self._store.base(header))
                self._rebuild = Rebuild(base)
                stack.callback(self._rebuild.close)
            self._arrival = self._store.partials.take(header.whole, header.start) or self._begun()
            self._held = stack.pop_all()

    def _begun(self) -> Arrival[Replica]:
        try:
            return self._store.begin(self._header.whole, self._origin)
        except StoreFull as error:
            if self._header.base is None:
                raise
            # A whole file may take the place of the one that the delta stands on.
            raise BaseMissing(error.message, remedy=error.remedy) from error

    def write(self, blocks: Iterable[bytes | memoryview]) -> None:
        """Blocking. Raises as `Arrival.write` does, BaseMissing, and what the blocks raise."""
        self._arrival.write(self._rebuild.pieces(blocks) if self._rebuild else blocks)

    async def commit(self, blake3: str) -> Replica:
        """Raises as `Arrival.commit` does; for what was put together of parts, BaseMissing and ResumeFrom."""
        try:
            replica = await anyio.to_thread.run_sync(self._arrival.commit, blake3)
        except ContentWrong as error:
            if self._header.base is not None:  # which may have rotted
                raise BaseMissing(f"the delta did not make the file: {error.message}") from error
            if self._header.start:  # of a file that was saved once more meanwhile
                raise ResumeFrom(f"the parts did not make the file: {error.message}", offset=0) from error
            raise
        self._store.partials.settle(self._header)
        return replica

    async def leave(self, *, broken_off: bool) -> None:
        """Let go of everything that was not committed; `broken_off`: unless it can go on later."""
        kept = broken_off and self._is_wanted() and self._store.partials.keep(self._arrival)
        # Handed to the thread before anything can cancel the wait for it.
        left = asyncio.get_running_loop().run_in_executor(None, self._let_go, kept)
        with anyio.CancelScope(shield=True):
            await asyncio.shield(left)

    def _is_wanted(self) -> bool:
        """Whether anything is to come of it: unless its session was forgotten, or as new a turn is here."""
        here = self._store.find(self._header.model, self._header.session)
        return not self._arrival.unwanted and (here is None or here.header.turn < self._header.turn)

    def _let_go(self, kept: bool) -> None:
        if not kept:
            self._arrival.discard()
        self._held.close()


def require_same(header: TransferHeader, *, group: str | None, fingerprint: str | None) -> None:
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
