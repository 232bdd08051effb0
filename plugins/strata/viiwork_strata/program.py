"""The engine's binary that a Strata JSON names."""

from __future__ import annotations

import os
import platform
import struct
import sys
from collections.abc import Mapping
from pathlib import Path

_ELF = b"\x7fELF"
_MACHINES = {"x86_64": 62, "amd64": 62, "aarch64": 183, "arm64": 183, "ppc64le": 21, "riscv64": 243}
"""What this machine calls itself, and how an ELF file is marked for it."""

_MACH_O = (b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe", b"\xca\xfe\xba\xbe")
_WINDOWS = b"MZ"


def base(config: Mapping[str, object]) -> Path:
    """What relative paths in the JSON start from: its "cwd", else the folder that the server was started in."""
    cwd = config.get("cwd")
    return Path.cwd() / cwd if isinstance(cwd, str) else Path.cwd()


def unfit(config: Mapping[str, object]) -> str:
    """Why the binary cannot run here, or nothing: also where the JSON names none, or one that only Strata finds."""
    exe = config.get("exe")
    if not isinstance(exe, str) or not exe:
        return ""
    path = base(config) / exe
    if not path.exists():
        return f"{path} does not exist" if Path(exe).is_absolute() else ""
    if not path.is_file() or not os.access(path, os.X_OK):
        return f"{path} is not an executable file"
    return _foreign(path)


def _foreign(path: Path) -> str:
    """A script is nobody's architecture."""
    try:
        with path.open("rb") as file:
            head = file.read(20)
    except OSError:
        return ""  # it may be executed without being read
    foreign = (_ELF,) if sys.platform == "darwin" else _MACH_O
    if head.startswith((_WINDOWS, *foreign)):
        return f"{path} is a program for another operating system"
    wanted = _MACHINES.get(platform.machine().lower())
    if not head.startswith(_ELF) or len(head) < 20 or wanted is None:
        return ""
    (machine,) = struct.unpack_from("<H" if head[5] == 1 else ">H", head, 18)
    return "" if machine == wanted else f"{path} is a program for another processor than {platform.machine()}"
