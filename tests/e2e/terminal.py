"""A program on a terminal of its own, as a person has it: what it shows can be waited for, and keys be pressed."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

ENTER, SPACE, UP, DOWN, CTRL_C, CTRL_U = "\r", " ", "\x1b[A", "\x1b[B", "\x03", "\x15"

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-Z\\-_]|[\x00-\x08\x0b-\x1f]")
_WHERE, _HERE = b"\x1b[6n", b"\x1b[1;1R"
"""A terminal is asked where its cursor is, and answers."""


@dataclass
class Terminal:
    """One program."""

    process: subprocess.Popen[bytes]
    master: int
    raw: bytearray = field(default_factory=bytearray)
    seen: int = 0
    """Characters of `text` that were waited for already."""

    @property
    def text(self) -> str:
        """All it has shown, without what moves the cursor, white space made one blank: lines wrap anywhere."""
        shown = _CONTROL.sub("", self.raw.decode("utf-8", "replace").replace("\r", ""))
        return re.sub(r"\s+", " ", shown)

    def read(self, until: float) -> bool:
        """Take in what comes next; False: it has ended."""
        ready, _, _ = select.select([self.master], [], [], max(0.0, until - time.monotonic()))
        if not ready:
            raise AssertionError(f"it shows nothing more:\n{self.text[-2000:]}")
        try:
            data = os.read(self.master, 65536)
        except OSError:  # the other side is closed
            return False
        self.raw += data
        for _ in range(data.count(_WHERE)):
            os.write(self.master, _HERE)
        return bool(data)

    def expect(self, *wanted: str, within: float = 30.0) -> str:
        """Wait for one of these texts, beyond what was waited for before; which it was."""
        until = time.monotonic() + within
        while True:
            text = self.text
            places = {text.find(one, self.seen): one for one in wanted if text.find(one, self.seen) >= 0}
            if places:
                first = min(places)
                self.seen = first + len(places[first])
                return places[first]
            assert self.read(until), f"it ended without {wanted}:\n{text[-2000:]}"

    def press(self, keys: str) -> None:
        os.write(self.master, keys.encode())

    def hang_up(self) -> None:
        """The terminal is gone."""
        os.close(self.master)
        self.master = -1

    def ended(self, within: float = 30.0) -> int:
        """Its exit status; the negative number of the signal that ended it."""
        until = time.monotonic() + within
        while self.master >= 0 and self.read(until):
            pass
        return self.process.wait(within)


@contextmanager
def terminal(argv: Sequence[str], environ: Mapping[str, str], *, columns: int = 80) -> Iterator[Terminal]:
    """Start it on a terminal that is this wide, as the leader of a session of its own."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        ["setsid", "-c", *argv], stdin=slave, stdout=slave, stderr=slave, env={**environ, "TERM": "xterm"}
    )
    os.close(slave)
    shown = Terminal(process, master)
    try:
        yield shown
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        if shown.master >= 0:
            shown.hang_up()
