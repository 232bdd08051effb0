"""A recording: what clients really ask this node for, as a trace that the simulator replays (routing.trace).

Times, sizes and keyed hashes; no text. A line is made when a request is over, lines are written together, in a thread.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections import deque
from pathlib import Path
from typing import Final

import msgspec
import structlog

from viiwork_core.atomic_file import save_then
from viiwork_core.clock import Clock
from viiwork_core.errors import ConfigError
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.simulation.trace import Record

MOST_BYTES: Final = 64 << 20
"""Of a file, some 400,000 requests; then it becomes FILE.1, in place of an older one, and another is begun."""

GATHER_S: Final = 1.0
"""Seconds for which lines are gathered."""

MOST_WAITING: Final = 20_000
"""Lines that wait to be written; beyond them the oldest are lost, as on a disk that hangs."""

_LONGEST_LINE: Final = 4096

_log = structlog.get_logger("viiwork.node")
_encode = msgspec.json.Encoder().encode
_record = msgspec.json.Decoder(Record)


class Recording:
    """The recording of one node. `note` is called on the data loop."""

    def __init__(self, path: Path, clock: Clock, most_bytes: int = MOST_BYTES) -> None:
        self._path = path
        self._clock = clock
        self._most_bytes = most_bytes
        self._waiting: deque[Record] = deque(maxlen=MOST_WAITING)
        """Their times are monotonic ones until they are written: a file may be turned before that."""

        self._epoch = 0.0
        """Monotonic time that is 0 in the file."""

        self._size = 0
        self._failing = False

    def open(self) -> None:
        """Go on with the file that is there, or begin one. Raises ConfigError where that cannot be written."""
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._size, at = _mended(self._path)
        except OSError as error:
            raise ConfigError(
                f"routing.trace: {self._path} cannot be written: {error}", remedy="name a file in a folder of this user"
            ) from error
        # A file that goes on after a restart goes on where it stopped: for how long nobody recorded is not known.
        self._epoch = self._clock.monotonic() - at

    def note(self, exchange: Exchange, seconds: float) -> None:
        """A request that came here from a client is over, `seconds` after it came, and was answered."""
        usage = exchange.usage
        if exchange.status != 200 or not usage.prompt:
            return
        at = self._clock.monotonic() - seconds
        session = exchange.request.query.session or secrets.token_hex(8)
        self._waiting.append(Record(at, session, usage.prompt, usage.completion or 0, round(seconds, 3)))

    async def run(self) -> None:
        """Write what there is, now and then, and when cancelled."""
        try:
            while True:
                await asyncio.sleep(GATHER_S)
                if self._waiting:
                    # To its end also when cancelled: one writer at a time.
                    await save_then(self.write, _nothing)
        finally:
            self.write()

    def write(self) -> None:
        """Write what waits. What cannot be written is lost, and told once."""
        records = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if not records:
            return
        try:
            if self._size >= self._most_bytes:
                self._turn(min(record.at for record in records))
            lines = b"".join(map(self._line, records))
            with open(self._path, "ab", opener=_private) as file:
                file.write(lines)
            self._size += len(lines)
        except OSError as error:
            if not self._failing:
                _log.warning("trace not written", path=str(self._path), reason=str(error))
            self._failing = True
            return
        self._failing = False

    def _turn(self, epoch: float) -> None:
        """Begin another file, in which the monotonic time `epoch` is 0."""
        self._path.replace(self._path.with_name(self._path.name + ".1"))
        self._size, self._epoch = 0, epoch

    def _line(self, record: Record) -> bytes:
        at = max(0.0, round(record.at - self._epoch, 3))
        return _encode(msgspec.structs.replace(record, at=at)) + b"\n"


def _nothing() -> None:
    """What is left to do once lines are written."""


def _private(path: str, flags: int) -> int:
    """Opened for its owner only: who asked how much when is nobody else's business."""
    return os.open(path, flags, 0o600)


def _mended(path: Path) -> tuple[int, float]:
    """The size of the file that is there, without a line that was cut short, and the time of its last record."""
    with open(path, "ab", opener=_private) as file:
        size = file.tell()
    with path.open("r+b") as file:
        file.seek(max(0, size - _LONGEST_LINE))
        lines, newline, torn = file.read().rpartition(b"\n")
        if torn:
            size -= len(torn)
            file.truncate(size)
    if not newline:
        return size, 0.0
    try:
        last = _record.decode(lines.rpartition(b"\n")[2])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise OSError(f"its last line is no record of a trace: {error}") from error
    return size, last.at + last.seconds
