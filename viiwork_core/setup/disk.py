"""Writing so that what is on disk after a power cut is the old file or the new one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from viiwork_core import atomic_file


def write_new(path: Path, text: str, mode: int) -> None:
    """A file that there was not, on disk when this returns, never readable by more than `mode` allows. Raises
    OSError."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:  # noqa: PTH123 - a mode of its own
        os.fchmod(file.fileno(), mode)
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())


def settle_file(path: Path) -> None:
    """What a regular file holds is on disk. Raises OSError."""
    if path.is_symlink():
        return
    with path.open("rb") as file:
        os.fsync(file.fileno())


def settle(folders: Iterable[Path]) -> None:
    """What was renamed or removed in these folders is on disk too. A folder that has gone needs nothing."""
    for folder in folders:
        with suppress(FileNotFoundError):
            atomic_file.settle(folder)


def missing_folders(path: Path) -> list[Path]:
    """The folders that `path` needs and that there are not, the outermost first."""
    found = []
    for folder in path.parents:
        if folder.exists():
            break
        found.append(folder)
    return found[::-1]


def digest(text: str) -> str:
    """SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of(path: Path) -> str | None:
    """The same of a regular file; None: there is none, or it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
