"""The intake: what another member sends is checked against this node's own models, received and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import structlog

from viiwork_core.engines.slots import SlotBook
from viiwork_core.errors import BaseMissing, CacheRefused, ResumeFrom, ViiworkError
from viiwork_core.kvshare.incoming import Reception, SentFile, require_same
from viiwork_core.kvshare.receiving import Carrier, receive
from viiwork_core.kvshare.replicas import Replica, ReplicaStore
from viiwork_core.kvshare.sealing import ReplicaHeader, TransferHeader
from viiwork_core.kvshare.shared_model import SharedModel
from viiwork_core.kvshare.tally import Tally

PRUNED_FROM: Final = 1024
"""Replicas noted, from which on those that are gone are taken out."""

MOST_OF_ONE: Final = 256
"""Replicas that arrive from one member at a time."""

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

        self._arriving = Counter[str]()
        """By the member that sends."""

    def found(self, keys: Iterable[tuple[str, str]]) -> None:
        """(model, session) of replicas that an earlier run of the node has left."""
        self._kept.update(dict.fromkeys(keys))

    def replicas(self) -> list[Replica]:
        """Those that lie here now."""
        store = self._store
        found = {key: replica for key in self._kept if store and (replica := store.find(*key))}
        self._kept = dict.fromkeys(found)
        return list(found.values())

    async def take(self, carrier: Carrier, *keys: bytes, origin: str, models: Mapping[str, SharedModel]) -> Replica:
        """Receive a replica from the member `origin`, sealed with one of the keys. Raises as `receive` does."""
        store = self._store
        if store is None:
            raise CacheRefused("no model's caches are shared here")
        claimed: list[TransferHeader] = []
        before: list[Replica | None] = []

        def accept(header: TransferHeader) -> None:
            claimed.append(header)
            before.append(store.find(header.model, header.session))
            self._accept(header, models)

        try:
            with self._place(origin):
                replica = await receive(carrier, Reception(store, accept, origin, self._sent), *keys)
        except (BaseMissing, ResumeFrom):
            raise  # the sender goes on in another way
        except ViiworkError as error:
            for header in claimed:
                self._refused(header, error.message, known=header.model in models)
            raise
        if replica not in before:  # else its sender has only asked whether it is here
            self._received(replica.header)
        return replica

    @contextmanager
    def _place(self, origin: str) -> Iterator[None]:
        """Each takes a thread and a connection, for as long as its sender likes."""
        if self._arriving[origin] >= MOST_OF_ONE:
            raise CacheRefused(f"{MOST_OF_ONE} replicas of {origin or 'one member'} arrive here already")
        self._arriving[origin] += 1
        try:
            yield
        finally:
            self._arriving[origin] -= 1
            self._arriving += Counter()  # without the members that send nothing

    def _received(self, header: ReplicaHeader) -> None:
        self.found([(header.model, header.session)])
        if len(self._kept) > PRUNED_FROM:
            self.replicas()
        counts = self._tally.of(header.model)
        counts.received += 1
        counts.received_bytes += header.length
        _log.info("kv received", model=header.model, session=header.session, turn=header.turn, bytes=header.length)

    def _refused(self, header: TransferHeader, reason: str, *, known: bool) -> None:
        if known:
            self._tally.of(header.model).refused += 1
        _log.info("kv refused", model=header.model, session=header.session, turn=header.turn, reason=reason)

    def _accept(self, header: TransferHeader, models: Mapping[str, SharedModel]) -> None:
        shared = models.get(header.model)
        views = [self._book.find(backend) for backend in shared.specs] if shared else []
        prints = {view.fingerprint for view in views if view is not None}
        fingerprint = header.fingerprint if header.fingerprint in prints else next(iter(prints), None)
        require_same(header, group=shared.group if shared else None, fingerprint=fingerprint)
        if why := self._unmovable(header.model, fingerprint):
            raise CacheRefused(f"the caches of {header.model} are of no use on this member: {why}")
        if header.turn <= (self._buried(header.session) or 0):
            raise CacheRefused("the session was forgotten")
