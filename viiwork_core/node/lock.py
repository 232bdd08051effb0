"""The lock on a state folder: one node a folder, and the id of the run that had it last."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from viiwork_core.errors import ConfigError

_ID = re.compile(r"viiwork-[0-9a-f]{16}")
_LONGEST = 256


class Lock:
    """A folder that is held."""

    def __init__(self, file: int) -> None:
        self._file = file
        found = _ID.fullmatch(os.pread(file, _LONGEST, 0).decode("ascii", "replace").strip())
        self.before: str | None = found[0] if found else None
        """The id of the last run that signed."""

    def sign(self, node_id: str) -> None:
        """Put this run's id on disk: before it starts anything, and after what the run before left has ended.

        So whoever comes next can tell what was left, at whatever moment this run is killed.
        """
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{node_id}\n".encode(), 0)
        os.fsync(self._file)


@contextmanager
def locked(state_dir: Path) -> Iterator[Lock]:
    """Hold the folder for as long as the block runs; the kernel lets it go with the process, however that ends.

    Raises ConfigError when another node holds it.
    """
    # Never removed: a second node could lock the removed file while a third locks its successor.
    path = state_dir / "node.lock"
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"node.state_dir: cannot open {path}: {error.strerror}", remedy="make it writable") from error
    try:
        _take(file, state_dir)
        yield Lock(file)
    finally:
        os.close(file)


def _take(file: int, state_dir: Path) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigError(
            f"node.state_dir: another node runs with {state_dir} already",
            remedy="stop that one, or give this one a folder of its own",
        ) from None
    except OSError as error:
        raise ConfigError(
            f"node.state_dir: {state_dir} cannot be locked: {error.strerror}", remedy="put it on a local disk"
        ) from error
