"""Files that are replaced in one step: a crash, or a disk that is full, leaves the old one or the new one."""

from __future__ import annotations

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes, *, mode: int = 0o600, settled: bool = True) -> None:
    """Replace a file in one step. Blocks. Raises OSError; then the old one is still there.

    `mode`: who may read it, less what the umask takes; the owner alone unless said otherwise. `settled`: also a power
    cut leaves one of the two, which costs waiting for the disk.
    """
    fresh = path.with_suffix(".new")
    # One that a crash has left may be readable for others, and a link may lead anywhere.
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
        file.write(content)
        if settled:
            file.flush()
            os.fsync(file.fileno())
    fresh.replace(path)
    if settled:
        _settle(path.parent)


def _settle(folder: Path) -> None:
    """Put a rename on disk."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
