"""Who can read the files that a node needs, and where a service that sees no homes has to be shown them."""

from __future__ import annotations

import glob
import grp
import pwd
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

HOMES: Final = (Path("/home"), Path("/root"), Path("/run/user"))
"""What systemd's ProtectHome hides."""

_DEVICES: Final = ("/dev/kfd", "/dev/dri/renderD*", "/dev/dri/card*", "/dev/nvidia*")


@dataclass(frozen=True, slots=True)
class Access:
    """To the files of one node."""

    in_homes: tuple[Path, ...]
    """Those of its folders and files that lie in homes; none inside another one."""

    owner: str | None
    """The user who can read what others cannot; None: everybody can read all of it."""

    closed: Path | None
    """What others cannot read."""

    groups: tuple[str, ...]
    """Groups that may use the machine's GPUs."""

    @classmethod
    def to(cls, data: Sequence[Path], programs: Iterable[Path]) -> Self:
        """To models and other data, which may be one user's, and to programs, which all may read."""
        paths = [path.resolve() for path in (*data, *programs)]
        in_homes = outermost(path for path in paths if any(path.is_relative_to(home) for home in HOMES))
        closed = next((path for path in data if not _open_to_all(path.resolve(), in_homes)), None)
        owner = None if closed is None else _name(closed.resolve())
        return cls(in_homes, owner, closed, device_groups())


def device_groups() -> tuple[str, ...]:
    """Groups of the device files of GPUs, without root's."""
    found = set()
    for path in (Path(name) for pattern in _DEVICES for name in glob.glob(pattern)):  # noqa: PTH207 - absolute patterns
        status = path.stat()
        if stat.S_ISCHR(status.st_mode) and status.st_gid:
            found.add(grp.getgrgid(status.st_gid).gr_name)
    return tuple(sorted(found))


def outermost(paths: Iterable[Path]) -> tuple[Path, ...]:
    """Those that lie in none of the others."""
    found: list[Path] = []
    for path in sorted(set(paths)):
        if not any(path.is_relative_to(other) for other in found):
            found.append(path)
    return tuple(found)


def _open_to_all(path: Path, shown: Sequence[Path]) -> bool:
    """Whether everybody can read it. Folders above one that is shown by itself do not matter."""
    if not path.exists():
        return True
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    own = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    return mode & own == own and all(_passable(folder) for folder in _above(path, shown))


def _above(path: Path, shown: Sequence[Path]) -> Iterator[Path]:
    if path in shown:
        return
    for folder in path.parents:
        yield folder
        if folder in shown:
            return


def _passable(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IXOTH)


def _name(path: Path) -> str:
    status = path.stat()
    try:
        return pwd.getpwuid(status.st_uid).pw_name
    except KeyError:
        return str(status.st_uid)
