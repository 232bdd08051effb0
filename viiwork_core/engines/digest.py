"""Digests of model files, remembered by path, size and modification time."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import msgspec
import structlog
from blake3 import blake3

from viiwork_core.atomic_file import write_atomically
from viiwork_core.errors import EngineRefused

_log = structlog.get_logger("viiwork.engines")

_BLOCK = 1024 * 1024
_REMEMBERED = 4096


class _Entry(msgspec.Struct, frozen=True, array_like=True):
    size: int
    mtime_ns: int
    digest: str


class Digests:
    """BLAKE3 of files and folders; `of` is the service that Context.digest offers.

    Remembers at most 4096 files, in `state_dir`/digests.json. One is read at a time: two readers only make a disk
    slower.
    """

    def __init__(self, state_dir: Path) -> None:
        self._file = state_dir / "digests.json"
        self._known: dict[str, _Entry] | None = None
        self._turn = anyio.Lock()

    async def of(self, path: Path) -> str:
        """Digest of a file's bytes, or of a folder's files by relative name, as hex.

        Hidden entries of a folder do not count: desktops and downloaders leave notes there that differ between
        machines. Raises EngineRefused when something cannot be read or changes meanwhile.
        """
        stop = threading.Event()
        async with self._turn:
            try:
                return await anyio.to_thread.run_sync(self._of, path, stop, abandon_on_cancel=True)
            except OSError as error:
                raise EngineRefused(f"cannot read {error.filename or path}: {error.strerror or error}") from error
            finally:
                stop.set()

    def _of(self, path: Path, stop: threading.Event) -> str:
        if self._known is None:
            self._known = _read(self._file)
        before = dict(self._known)
        try:
            return self._folder(path, stop) if path.is_dir() else self._one(path, stop)
        finally:
            if before != self._known and not stop.is_set():
                _write(self._file, self._known)

    def _folder(self, folder: Path, stop: threading.Event) -> str:
        whole = blake3()
        for name in sorted(_names(folder)):
            for part in (name.encode("utf-8", "surrogateescape"), self._one(folder / name, stop).encode()):
                whole.update(len(part).to_bytes(8, "big") + part)
        return whole.hexdigest()

    def _one(self, path: Path, stop: threading.Event) -> str:
        assert self._known is not None
        info = path.stat()
        if not stat.S_ISREG(info.st_mode):
            raise EngineRefused(f"{path} is not a regular file")
        key = str(path.resolve())
        entry = self._known.get(key)
        if entry is None or (entry.size, entry.mtime_ns) != (info.st_size, info.st_mtime_ns):
            entry = _Entry(info.st_size, info.st_mtime_ns, _digest(path, info, stop))
            self._known.pop(key, None)
            self._known[key] = entry
            while len(self._known) > _REMEMBERED:
                del self._known[next(iter(self._known))]
        return entry.digest


def _names(folder: Path) -> Iterator[str]:
    for root, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith("."):
                yield (Path(root) / name).relative_to(folder).as_posix()


def _digest(path: Path, info: os.stat_result, stop: threading.Event) -> str:
    whole = blake3()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            if stop.is_set():
                raise EngineRefused(f"reading {path} was called off")
            whole.update(block)
        after = os.fstat(file.fileno())
    if (after.st_size, after.st_mtime_ns) != (info.st_size, info.st_mtime_ns):
        raise EngineRefused(f"{path} changed while it was read")
    return whole.hexdigest()


def _read(file: Path) -> dict[str, _Entry]:
    try:
        return msgspec.json.decode(file.read_bytes(), type=dict[str, _Entry])
    except FileNotFoundError:
        return {}
    except (OSError, msgspec.DecodeError) as error:
        _log.warning("remembered digests cannot be used; files are read again", file=str(file), reason=str(error))
        return {}


def _write(file: Path, known: dict[str, _Entry]) -> None:
    try:
        write_atomically(file, msgspec.json.encode(known), mode=0o666)
    except OSError as error:
        _log.warning("digests cannot be remembered", file=str(file), reason=str(error))
