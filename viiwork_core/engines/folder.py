"""The folder in which an engine keeps its cache files: private, and empty at each launch."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import anyio.to_thread

from viiwork_core.errors import ConfigError

_REMEDY = "remove it, or name another folder for the cache files of kv_share"


async def empty_private_folder(path: Path) -> None:
    """Make `path` an empty folder with mode 0700. Raises ConfigError when it is not ours to empty."""
    try:
        await anyio.to_thread.run_sync(_empty, path)
    except OSError as error:
        raise ConfigError(f"cannot prepare the cache folder {path}: {error.strerror}", remedy=_REMEDY) from error


def _empty(path: Path) -> None:
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    # On a shared tmpfs another user may have put something of theirs, or a link to something of ours, in this place.
    info = path.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
        raise ConfigError(f"the cache folder {path} is not a folder of this user", remedy=_REMEDY)
    path.chmod(0o700)
    for entry in os.scandir(path):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            Path(entry.path).unlink()
