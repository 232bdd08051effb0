"""Wizards that are killed, each in a process of its own: python doomed_wizard.py FOLDER SIGNAL once|twice|removing

In FOLDER/N lies what a wizard leaves that got SIGNAL just before its Nth change of the file system, for every N.
twice: in FOLDER/N-M it is what is left after the next run was killed too, before its Mth change. Prints the last N.
removing: the one that is killed uninstalls what a wizard wrote.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from machine import prepare, recover, remove, write

CHANGES = {"os.chmod", "os.link", "os.mkdir", "os.remove", "os.rename", "os.rmdir", "shutil.copyfile"}


class Doom:
    """Counts changes below a folder and strikes before one of them."""

    def __init__(self, base: Path, last: int, number: int) -> None:
        self._base, self._left, self._signal = str(base), last, number

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        writes = event == "open" and isinstance(args[2], int) and bool(args[2] & (os.O_WRONLY | os.O_RDWR))
        if not (writes or event in CHANGES) or not str(args[0]).startswith(self._base):
            return
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), self._signal)


def killed(work: Callable[[Path], object], base: Path, last: int, number: int) -> bool:
    """Whether the work was struck; else it came to its end before."""
    pid = os.fork()
    if pid == 0:
        sys.addaudithook(Doom(base, last, number))
        work(base)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) or status == 0, f"{base}: the wizard failed by itself"
    return os.WIFSIGNALED(status)


def main(folder: Path, number: int, often: str) -> int:
    # Python's own answer to Ctrl-C is an exception; the default is an end, as SIGTERM is.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    work = remove if often == "removing" else write
    for n in count(1):
        base = folder / str(n)
        prepare(base)
        if often == "removing":
            write(base)
        if not killed(work, base, n, number):
            return n - 1
        for m in count(1) if often == "twice" else ():
            again = folder / f"{n}-{m}"
            prepare(again)
            killed(write, again, n, number)
            if not killed(recover, again, m, number):
                break
    raise AssertionError


if __name__ == "__main__":
    sys.stdout.write(f"{main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])}\n")
