"""One wizard at a time: the lock on the wizard's own folder."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from viiwork_core.errors import ConfigError
from viiwork_core.setup.disk import missing_folders

NAME: Final = "lock"
_TRIES: Final = 100


@contextmanager
def locked(records: Path) -> Iterator[None]:
    """Hold the folder for as long as the block runs; the kernel lets it go with the process, however that ends.

    The folder is made, and goes again when nothing but the lock lies in it. Raises ConfigError when another one holds
    it, or when this user may not write there.
    """
    made = missing_folders(records / NAME)
    opened = _opened(records)
    try:
        yield
    finally:
        with suppress(OSError):
            if os.listdir(records) == [NAME]:  # noqa: PTH208 - the one name, not a path
                (records / NAME).unlink()
                for folder in reversed(made or [records]):
                    folder.rmdir()
        os.close(opened)


def _opened(records: Path) -> int:
    """The lock file, locked. The one before may have been removed between its opening and its locking."""
    path = records / NAME
    for _ in range(_TRIES):
        try:
            records.mkdir(mode=0o700, parents=True, exist_ok=True)
            opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError:
            continue
        except OSError as error:
            what = f"{records}: cannot be written: {error.strerror}"
            raise ConfigError(what, remedy="run the command with sudo, or make the folder writable") from error
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(path, opened):
                return opened
        except BlockingIOError:
            os.close(opened)
            raise ConfigError(
                "another `viiwork init` or `viiwork uninstall` runs on this machine",
                remedy="end that one first, or wait for it",
            ) from None
        os.close(opened)
    raise ConfigError(f"{path}: comes and goes", remedy="see who else removes it")


def _is(path: Path, opened: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(opened))
    except FileNotFoundError:
        return False
