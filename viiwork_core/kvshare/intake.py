"""The intake: what another member sends is checked against this node's own models, received and counted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Final

import structlog

from viiwork_core.engines.slots import SlotBook
from viiwork_core.errors import BaseMissing, CacheRefused, ResumeFrom, ViiworkError
from viiwork_core.kvshare.receiving import SentFile, receive, require_same
from viiwork_core.kvshare.replicas import Replica, ReplicaStore
from viiwork_core.kvshare.sealing import ReplicaHeader
from viiwork_core.kvshare.shared_model import SharedModel
from viiwork_core.kvshare.tally import Tally

PRUNED_FROM: Final = 1024
"""Replicas noted, from which on those that are gone are taken out."""

_log = structlog.get_logger("viiwork.kv")


class Intake:
    """On the data loop."""

    def __init__(
        self,
        book: SlotBook,
        store: ReplicaStore | None,
        tally: Tally,
        unmovable: Callable[[str, str | None], str | None],
        buried: Callable[[str], int | None],
        sent: SentFile = lambda _: None,
    ) -> None:
        """`unmovable`: why a model's caches, of a fingerprint, are of no use here. `buried`: the turn up to which a
        session is forgotten. `sent`: the files that this node has sent."""
        self._book = book
        self._store = store
        self._tally = tally
        self._unmovable = unmovable
        self._buried = buried
        self._sent = sent
        self._kept: dict[tuple[str, str], None] = {}
        """(model, session) of the replicas that came; some may be gone again."""

    def found(self, keys: Iterable[tuple[str, str]]) -> None:
        """(model, session) of replicas that an earlier run of the node has left."""
        self._kept.update(dict.fromkeys(keys))

    def replicas(self) -> list[Replica]:
        """Those that lie here now."""
        store = self._store
        found = {key: replica for key in self._kept if store and (replica := store.find(*key))}
        self._kept = dict.fromkeys(found)
        return list(found.values())

    async def take(
        self, chunks: AsyncIterator[bytes], *keys: bytes, origin: str, models: Mapping[str, SharedModel]
    ) -> Replica:
        """Receive a replica from the member `origin`, sealed with one of the keys. Raises as `receive` does."""
        store, (key, *previous) = self._store, keys
        if store is None:
            raise CacheRefused("no model's caches are shared here")
        claimed: list[ReplicaHeader] = []

        def accept(header: ReplicaHeader) -> None:
            claimed.append(header)
            self._accept(header, models)

        try:
            replica = await receive(
                chunks, key=key, previous=previous, store=store, accepts=accept, origin=origin, sent=self._sent
            )
        except (BaseMissing, ResumeFrom):
            raise  # the sender goes on in another way
        except ViiworkError as error:
            for header in claimed:
                self._refused(header, error.message, known=header.model in models)
            raise
        header = replica.header
        self.found([(header.model, header.session)])
        if len(self._kept) > PRUNED_FROM:
            self.replicas()
        counts = self._tally.of(header.model)
        counts.received += 1
        counts.received_bytes += header.length
        _log.info("kv received", model=header.model, session=header.session, turn=header.turn, bytes=header.length)
        return replica

    def _refused(self, header: ReplicaHeader, reason: str, *, known: bool) -> None:
        if known:
            self._tally.of(header.model).refused += 1
        _log.info("kv refused", model=header.model, session=header.session, turn=header.turn, reason=reason)

    def _accept(self, header: ReplicaHeader, models: Mapping[str, SharedModel]) -> None:
        shared = models.get(header.model)
        views = [self._book.find(backend) for backend in shared.specs] if shared else []
        prints = {view.fingerprint for view in views if view is not None}
        fingerprint = header.fingerprint if header.fingerprint in prints else next(iter(prints), None)
        require_same(header, group=shared.group if shared else None, fingerprint=fingerprint)
        if why := self._unmovable(header.model, fingerprint):
            raise CacheRefused(f"the caches of {header.model} are of no use on this member: {why}")
        if header.turn <= (self._buried(header.session) or 0):
            raise CacheRefused("the session was forgotten")
