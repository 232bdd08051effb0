"""Files that are replaced in one step: a crash, or a disk that is full, leaves the old one or the new one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
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
        settle(path.parent)


def settle(folder: Path) -> None:
    """What was renamed or removed in a folder is on disk. Blocks. Raises OSError."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


async def save_then(save: Callable[[], None], then: Callable[[], None]) -> None:
    """Run `save`, which blocks, in a thread, and after it `then`, unless it failed. Raises what it raises.

    Also when the caller is cancelled meanwhile: what is on disk must be what holds.
    """
    saving = asyncio.ensure_future(asyncio.to_thread(save))
    try:
        await asyncio.shield(saving)
    finally:
        await asyncio.wait({saving})
        if saving.exception() is None:
            then()
