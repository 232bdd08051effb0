"""A replica while it arrives, and how a finished one lies on disk.

A replica is two files of one folder: the engine's file (.kv), and its header (.json) whose presence says that the
other is whole. Everything here blocks on the disk.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Generic, TypeVar

from blake3 import blake3

from viiwork_core.errors import CacheRefused, StoreFull
from viiwork_core.kvshare.sealing import (
    BLOCK,
    HEADER_LIMIT,
    ReplicaHeader,
    TransferHeader,
    decode_header,
    encode_header,
)

SUFFIXES = (".kv", ".json", ".tmp")
"""Of all files that a store makes."""

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)

_Kept = TypeVar("_Kept")


class ContentWrong(CacheRefused):
    """All has arrived, and it is not the file that was announced."""


class Arrival(Generic[_Kept]):
    """A temporary file that only `commit` makes a replica.

    `install` takes a finished one into the store's index or raises CacheRefused; `give_up` gives its room back.
    `replaced` are files to delete before the first byte is written. The methods may meet in different threads: a
    cancelled caller discards while the thread of its last write may still run.
    """

    def __init__(
        self,
        folder: Path,
        header: TransferHeader,
        *,
        origin: str = "",
        replaced: Iterable[Path],
        install: Callable[[Arrival[_Kept], ReplicaHeader], _Kept],
        give_up: Callable[[Arrival[_Kept]], None],
    ) -> None:
        self.header = header
        self.origin = origin
        """The member that sends it."""

        self.unwanted = False
        """Set when the session is forgotten meanwhile."""

        key = hashlib.blake2b(f"{header.model}\0{header.session}".encode(), digest_size=20).hexdigest()
        # The random part keeps a late deletion of an earlier file from meeting a later one of the same turn.
        self.path = folder / f"{key}-{header.turn}-{secrets.token_hex(4)}.kv"
        self._temporary = self.path.with_suffix(".tmp")
        self._replaced, self._install, self._give_up = replaced, install, give_up
        self._lock = threading.Lock()
        self._over = False
        self._file: int | None = None
        self._hasher = blake3()
        self._written = 0

    @property
    def written(self) -> int:
        """Bytes of the file so far."""
        return self._written

    def write(self, blocks: Iterable[bytes | memoryview]) -> None:
        """Append to the file; the first call makes it, mode 0600. A block is written before the next is asked for.

        Blocking. Raises CacheRefused beyond the announced length, and StoreFull.
        """
        with self._lock:
            file = self._opened()
            for block in blocks:
                self._written += len(block)
                if self._written > self.header.length:
                    raise CacheRefused(f"the replica is longer than the {self.header.length} bytes it announced")
                self._hasher.update(block)
                try:
                    _write(file, block)
                except (
                    OSError
                ) as error:  # not `mapped`: a context manager for each block costs some percent of a transfer
                    raise _said(error) from error

    def commit(self, blake3: str) -> _Kept:
        """Check length and hash, make both files durable under their names, and replace an older turn. Blocking.

        `blake3`: what the sender says the whole file has. Raises ContentWrong, CacheRefused (no longer newest,
        forgotten meanwhile) and StoreFull.
        """
        with self._lock:
            file = self._opened()
            if self._written != self.header.length:
                raise ContentWrong(f"the replica has {self._written} bytes, {self.header.length} were announced")
            if self._hasher.hexdigest() != blake3:
                raise ContentWrong("the replica's content is not what its sender says")
            header = self.header.stored(blake3, self.origin)
            with mapped():
                self._publish(file, header)
            kept = self._install(self, header)
            self._over = True
            self._close()
            return kept

    def discard(self) -> None:
        """Remove all traces, unless it was committed. Blocking; may be called again."""
        with self._lock:
            if self._over:
                return
            self._over = True
            self._close()
            unlink_all((self._temporary, *files_of(self.path), *self._replaced))
            self._give_up(self)

    def _opened(self) -> int:
        if self._over:
            raise CacheRefused("the transfer was given up")
        if self._file is None:
            unlink_all(self._replaced)
            with mapped():
                self._file = _create(self._temporary)
        return self._file

    def _publish(self, file: int, header: ReplicaHeader) -> None:
        os.fsync(file)
        self._temporary.rename(self.path)
        # The header comes second: a payload without one is a leftover.
        beside = _create(self._temporary)
        try:
            _write(beside, encode_header(header))
            os.fsync(beside)
        finally:
            os.close(beside)
        self._temporary.rename(_header_file(self.path))
        _sync_folder(self.path.parent)

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def copy_file(source: int, target: Path) -> None:
    """Copy an open file to a new one, mode 0600, block by block. Raises OSError."""
    file = _create(target)
    try:
        while block := os.read(source, BLOCK):
            _write(file, block)
    finally:
        os.close(file)


def _create(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)


def _write(file: int, data: bytes | memoryview) -> None:
    with memoryview(data) as view:
        done = 0
        while done < len(view):
            done += os.write(file, view[done:])


def read_header(file: Path) -> ReplicaHeader:
    """Read a header file. Raises OSError and CacheRefused."""
    with file.open("rb") as stream:
        return decode_header(stream.read(HEADER_LIMIT + 1))


def _header_file(payload: Path) -> Path:
    return payload.with_suffix(".json")


def files_of(payload: Path) -> tuple[Path, Path]:
    """Header and payload, in the order in which they are deleted: a payload without a header is a leftover."""
    return _header_file(payload), payload


def unlink_all(paths: Iterable[Path]) -> None:
    """Delete what is there; what cannot be deleted is left to the next start's sweep."""
    for path in paths:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


@contextmanager
def mapped() -> Iterator[None]:
    """Everything the disk says, in the one class that callers know."""
    try:
        yield
    except OSError as error:
        raise _said(error) from error


def _said(error: OSError) -> StoreFull:
    words = "the disk is full" if error.errno in _NO_ROOM else error.strerror or type(error).__name__
    return StoreFull(f"a replica cannot be written: {words}")
