"""Wizards on a disk with less and more room: python full_disk.py FOLDER; prints a word for each amount."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from machine import on, prepare, write

from viiwork_core.errors import ViiworkError

PAGE = 4096


def tried(disk: Path, free: int) -> str:
    """With so many free pages: whether all is there. Nothing is, otherwise."""
    base, ballast = disk / "machine", disk / "ballast"
    prepare(base)
    before = on(base)
    room = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    ballast.write_bytes(bytes(max(0, room - free * PAGE)))
    said = ""
    try:
        write(base)
    except ViiworkError as error:
        said = error.message
    ballast.unlink()
    if said and ("No space left" not in said or on(base) != before):
        raise SystemExit(f"{said}; left: {on(base)}")
    shutil.rmtree(base)
    return "full" if said else "whole"


if __name__ == "__main__":
    sys.stdout.write(" ".join(tried(Path(sys.argv[1]), free) for free in range(1, 16)) + "\n")
