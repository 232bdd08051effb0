"""The receiver's store: replicas of other members' sessions, on disk, bounded, the newest turn of each session.

All methods may be called from any thread; the ones that touch the disk say so.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from viiwork_core.clock import Clock
from viiwork_core.errors import BaseMissing, CacheRefused, ReplicaGone, StoreFull
from viiwork_core.kvshare.arrivals import SUFFIXES, Arrival, copy_file, files_of, mapped, read_header, unlink_all
from viiwork_core.kvshare.partials import Partials
from viiwork_core.kvshare.sealing import ReplicaHeader, TransferHeader, measure


@dataclass(frozen=True, slots=True)
class Replica:
    """One stored replica. A value: the store may drop the file at any time unless it is leased."""

    header: ReplicaHeader
    path: Path
    since: float
    """Monotonic time at which this process first had it."""


@dataclass(slots=True, eq=False)
class _Entry:
    replica: Replica
    leases: int = 0
    retired: bool = False
    """No longer found; its files go with the last lease."""


class ReplicaStore:
    """Replicas by (model, session), at most `max_bytes` together, the least recently used dropped first.

    What is still arriving counts into the bound. A leased replica is never dropped.
    """

    def __init__(self, folder: Path, max_bytes: int, clock: Clock, *, keep_partials_s: float = 0.0) -> None:
        """`keep_partials_s`: how long a transfer that broke off can go on."""
        self._folder = folder
        self._max_bytes = max_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[tuple[str, str], _Entry] = {}
        """In the order of use, oldest first."""

        self._arriving: set[Arrival[Replica]] = set()
        self.partials = Partials[Replica](keep_partials_s)
        self._used = 0

    @property
    def used(self) -> int:
        """Bytes of all replicas, arriving ones counted with their announced length."""
        return self._used

    def open(self) -> ReplicaStore:
        """Make the folder, take in what an earlier run left whole, and drop the rest. Blocking: file I/O.

        Contents are not read here; `verified_copy` does that. Raises StoreFull when the folder cannot be used.
        """
        with mapped():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._folder.chmod(0o700)
            for replica in self._scan():
                self._admit(replica)
            self._sweep({file for entry in self._entries.values() for file in files_of(entry.replica.path)})
        with self._lock:
            gone = self._make_room(0)
        unlink_all(gone)
        return self

    def find(self, model: str, session: str) -> Replica | None:
        """The newest whole replica of a session. Memory only."""
        with self._lock:
            entry = self._entries.get((model, session))
            return entry.replica if entry else None

    def came_from(self, model: str, session: str, member: str) -> Replica | None:
        """The same, if that member sent it, which has it too."""
        replica = self.find(model, session)
        return replica if replica is not None and member and replica.header.origin == member else None

    @contextmanager
    def lease(self, replica: Replica) -> Iterator[Replica]:
        """Keep a replica on disk for the length of a `with`, whatever arrives meanwhile.

        Entering is memory only; leaving may delete a file that was replaced in between. Raises ReplicaGone when that
        has happened to it already.
        """
        key = (replica.header.model, replica.header.session)
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry.replica.path != replica.path:
                raise ReplicaGone("the replica is no longer kept here")
            entry.leases += 1
            self._entries[key] = self._entries.pop(key)
        try:
            yield replica
        finally:
            with self._lock:
                entry.leases -= 1
                gone = self._settle(entry)
            unlink_all(gone)

    @contextmanager
    def base(self, header: TransferHeader) -> Iterator[Path]:
        """The file that a delta stands on, kept for the length of a `with`, as by `lease`. Raises BaseMissing."""
        replica = self.find(header.model, header.session)
        if replica is None or replica.header.blake3 != header.base:
            raise BaseMissing("the turn that the delta stands on is not here")
        with ExitStack() as stack:
            try:
                stack.enter_context(self.lease(replica))
            except ReplicaGone as error:
                raise BaseMissing("the turn that the delta stands on is no longer here") from error
            yield replica.path

    def begin(self, header: TransferHeader, origin: str = "") -> Arrival[Replica]:
        """Reserve room for a replica that is about to arrive from the member `origin`. Memory only.

        The caller commits or discards it. Raises CacheRefused when a turn as new is here already, and StoreFull.
        """
        with self._lock:
            self._require_newer(header)
            replaced = self._make_room(header.length)
            self._used += header.length
            arrival = Arrival(
                self._folder, header, origin=origin, replaced=replaced, install=self._install, give_up=self._give_up
            )
            self._arriving.add(arrival)
        return arrival

    def forget(self, session: str) -> None:
        """Drop every model's replica of a session, and what is arriving for it. Blocking: deletes files."""
        with self._lock:
            gone = [path for key in list(self._entries) if key[1] == session for path in self._retire(key)]
            for arrival in self._arriving:
                arrival.unwanted |= arrival.header.session == session
        unlink_all(gone)

    def verified_copy(self, replica: Replica, target: Path, *, link: bool = True) -> None:
        """Put the replica at `target` for an engine to read, and prove that it still is what its header says.

        Within one file system the target is a hard link, unless `link` is False: an engine must not save under this
        name, and the caller unlinks it after the restore. Blocking: reads the whole file. Raises ReplicaGone,
        CacheRefused when it rotted or its file vanished - then it is dropped from the store - and StoreFull when
        `target` cannot be written.
        """
        with self.lease(replica):
            try:
                intact = _offer(replica, target, link=link)
            except BaseException:
                target.unlink(missing_ok=True)
                raise
            if not intact:
                target.unlink(missing_ok=True)
                self._drop(replica)
                raise CacheRefused("the stored replica was damaged on this member's disk, and is dropped")
            with suppress(OSError):
                os.utime(files_of(replica.path)[0])  # the order of use, for the next start

    def _install(self, arrival: Arrival[Replica], header: ReplicaHeader) -> Replica:
        """Turn a finished arrival into the session's replica. Memory only, save for what it replaces."""
        replica = Replica(header, arrival.path, self._clock.monotonic())
        with self._lock:
            if arrival.unwanted:
                raise CacheRefused("the session was forgotten while its replica arrived")
            self._require_newer(arrival.header)
            gone = self._retire((replica.header.model, replica.header.session))
            self._entries[replica.header.model, replica.header.session] = _Entry(replica)
            self._arriving.discard(arrival)
        unlink_all(gone)
        return replica

    def _give_up(self, arrival: Arrival[Replica]) -> None:
        with self._lock:
            if arrival in self._arriving:
                self._arriving.discard(arrival)
                self._used -= arrival.header.length

    def _drop(self, replica: Replica) -> None:
        with self._lock:
            key = (replica.header.model, replica.header.session)
            entry = self._entries.get(key)
            gone = self._retire(key) if entry is not None and entry.replica.path == replica.path else []
        unlink_all(gone)

    def _require_newer(self, header: TransferHeader) -> None:
        entry = self._entries.get((header.model, header.session))
        if entry is not None and header.turn <= entry.replica.header.turn:
            raise CacheRefused(f"not newer: turn {header.turn} came, turn {entry.replica.header.turn} is here")

    def _make_room(self, length: int) -> list[Path]:
        """Drop from the oldest on until `length` more bytes fit; returns the files to delete. Needs the lock."""
        held = sum(entry.replica.header.length for entry in self._entries.values() if not entry.leases)
        if self._used - held + length > self._max_bytes:
            raise StoreFull(
                f"no room for a replica of {length} bytes: {self._max_bytes} are allowed, and "
                f"{self._used - held} are arriving or in use",
                remedy="raise kv_share.max_gib on the receiving member",
            )
        gone: list[Path] = []
        for key in [key for key, entry in self._entries.items() if not entry.leases]:
            if self._used + length <= self._max_bytes:
                break
            gone += self._retire(key)
        return gone

    def _retire(self, key: tuple[str, str]) -> list[Path]:
        """Take a replica out of the index; returns the files to delete now. Needs the lock."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return []
        entry.retired = True
        return self._settle(entry)

    def _settle(self, entry: _Entry) -> list[Path]:
        if not entry.retired or entry.leases:
            return []
        self._used -= entry.replica.header.length
        return list(files_of(entry.replica.path))

    def _scan(self) -> list[Replica]:
        """Whole replicas in the folder, the least recently used first."""
        found: list[tuple[int, Replica]] = []
        for file in self._folder.glob("*.json"):
            with suppress(OSError, CacheRefused):
                header = read_header(file)
                if (payload := file.with_suffix(".kv")).lstat().st_size == header.length:
                    found.append((file.stat().st_mtime_ns, Replica(header, payload, self._clock.monotonic())))
        return [replica for _, replica in sorted(found, key=lambda pair: pair[0])]

    def _admit(self, replica: Replica) -> None:
        """Index a replica found at start, unless a newer turn of its session was found as well."""
        key = (replica.header.model, replica.header.session)
        known = self._entries.get(key)
        if known is not None and known.replica.header.turn >= replica.header.turn:
            return
        if known is not None:
            self._used -= self._entries.pop(key).replica.header.length
        self._entries[key] = _Entry(replica)
        self._used += replica.header.length

    def _sweep(self, wanted: set[Path]) -> None:
        unlink_all(file for file in self._folder.iterdir() if file.suffix in SUFFIXES and file not in wanted)


def _offer(replica: Replica, target: Path, *, link: bool) -> bool:
    """Link or copy the replica to `target`; False when it vanished or its bytes are not the header's."""
    with mapped():
        target.unlink(missing_ok=True)
        try:
            source = os.open(replica.path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            if not (link and _linked(replica.path, target)):
                copy_file(source, target)
        finally:
            os.close(source)
        try:
            return measure(target) == (replica.header.length, replica.header.blake3)
        except OSError as error:
            if error.errno == errno.EIO:  # a block that cannot be read has rotted as well
                return False
            raise


def _linked(path: Path, target: Path) -> bool:
    """False on another file system, or one without links."""
    try:
        target.hardlink_to(path)
    except OSError:
        return False
    return True
