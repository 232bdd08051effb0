"""A child process: its own group, an exact environment, its output as lines in the log, and an end that is an end.

Everything that the node starts goes through `start_process`; nothing here blocks the loop.
"""

from __future__ import annotations

import asyncio
import errno
import os
import platform
import re
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import anyio
import structlog

from viiwork_core.contracts.engine import Launch
from viiwork_core.errors import ConfigError, EngineRefused

_log = structlog.get_logger("viiwork.engines")

TERM_AFTER = 5.0
"""Seconds between the first SIGTERM and the second."""
KILL_AFTER = 2.0
"""Seconds between the second SIGTERM and SIGKILL."""
_REAP_BUDGET = 3.0
_END_BUDGET = 10.0
_OUTPUT_BUDGET = 1.0
_TAIL_LINES = 20
_LINE_LIMIT = 4096

_LINE_END = re.compile(rb"[\r\n]+")
_OTHER_MACHINE = (errno.ENOEXEC, 86)
"""86 is macOS's EBADARCH, which Python has no name for."""

_ILLEGAL = (-signal.SIGILL, 128 + signal.SIGILL)
"""Statuses of a process that met an instruction its CPU has not, and of a shell that started such a one."""

_CONTROL = dict.fromkeys((*range(9), *range(10, 32), *range(127, 160)), " ")


class Sits(Protocol):
    """Whoever ends process groups when the node is gone."""

    def add(self, pgid: int) -> None: ...

    def remove(self, pgid: int) -> None: ...


class Sink(asyncio.Protocol):
    """Takes a child's output, stdout and stderr together."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        self.closed.set()


class LineSink(Sink):
    """Cuts output into lines, hands each to `write`, and keeps the last 20 for error messages.

    A line is at most 4096 bytes; the rest of a longer one is dropped. Control characters become blanks, so that an
    engine cannot steer the terminal that shows the log.
    """

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self._write = write
        self._rest = b""
        self._dropping = False

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = _LINE_END.split(self._rest + data)
        for line in lines:
            self._line(line)
        if len(self._rest) > _LINE_LIMIT:
            self._line(self._rest)
            self._rest, self._dropping = b"", True

    def connection_lost(self, exc: Exception | None) -> None:
        self._line(self._rest)
        super().connection_lost(exc)

    def _line(self, line: bytes) -> None:
        dropped, self._dropping = self._dropping, False
        text = line[:_LINE_LIMIT].decode("utf-8", "replace").translate(_CONTROL).rstrip()
        if text and not dropped:
            self.tail.append(text)
            self._write(text)


S = TypeVar("S", bound=Sink)


class Child(Generic[S]):
    """A running process with its group."""

    def __init__(
        self, process: asyncio.subprocess.Process, output: asyncio.ReadTransport, sink: S, sitter: Sits | None
    ) -> None:
        self.pid = process.pid
        """Also the id of its process group and of its session."""
        self.sink = sink
        self._process = process
        self._output = output
        self._sitter = sitter

    @property
    def returncode(self) -> int | None:
        """Exit status, negative for a signal; None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait until the process (not its descendants) has ended, and for what it still had to say, a second."""
        code = await self._process.wait()
        await self._drain()
        return code

    async def end(self, patience: float | None = None) -> None:
        """End the whole group: SIGTERM, again after `patience` (5 s), SIGKILL after 2 s more. Takes 6 s more than the
        patience at the very most.

        The last SIGKILL goes out always: workers whose leader left before them are in the group still.
        """
        if self.returncode is None:
            self._signal(signal.SIGTERM)
            if not await self._gone(TERM_AFTER if patience is None else patience):
                self._signal(signal.SIGTERM)
                await self._gone(KILL_AFTER)
        self.kill()
        if not await self._gone(_REAP_BUDGET):
            _log.error("a process does not end even after SIGKILL", pid=self.pid)
            return
        await self._drain()
        if self._sitter is not None:
            self._sitter.remove(self.pid)

    def kill(self) -> None:
        """SIGKILL to the group, without waiting."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):  # macOS: EPERM for a group of zombies
            os.killpg(self.pid, number)

    async def _gone(self, seconds: float) -> bool:
        with anyio.move_on_after(seconds):
            await self._process.wait()
        return self.returncode is not None

    async def _drain(self) -> None:
        # A descendant may hold the pipe open for as long as it lives.
        with anyio.move_on_after(_OUTPUT_BUDGET):
            await self.sink.closed.wait()
        self._output.close()


async def start_process(
    argv: Sequence[str], env: Mapping[str, str], *, stdin: int = subprocess.DEVNULL, output: int = subprocess.DEVNULL
) -> asyncio.subprocess.Process:
    """Start a program in a session and group of its own, with exactly `env`.

    Raises ConfigError when it can never start (not found, not executable), EngineRefused when it might another time.
    """
    starting = asyncio.create_task(
        asyncio.create_subprocess_exec(
            *argv, stdin=stdin, stdout=output, stderr=output, env=dict(env), start_new_session=True
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # A start cannot be taken back half way: asyncio would wait for ever for a child that it no longer watches.
        # A scope that was cancelled goes on cancelling what is awaited in it.
        with anyio.CancelScope(shield=True):
            await _undo(starting)
        raise
    except (OSError, ValueError) as error:
        raise _not_started(argv[0], error) from error


def _not_started(program: str, error: OSError | ValueError) -> ConfigError | EngineRefused:
    """A ConfigError for what another attempt would not help. ValueError: a name that no program can have."""
    name = Path(program).name
    if isinstance(error, ValueError | FileNotFoundError | PermissionError | NotADirectoryError):
        reason = error.strerror if isinstance(error, OSError) else str(error)
        remedy = f"install {name}, or name the right file in the model's options"
        return ConfigError(f"cannot start {program}: {reason}", remedy=remedy)
    if error.errno in _OTHER_MACHINE:
        return ConfigError(
            f"cannot start {program}: {error.strerror}; it is no program for this machine ({platform.machine()})",
            remedy=f"install a {name} that was built for it; a script needs a first line: #!/bin/sh",
        )
    return EngineRefused(f"cannot start {program}: {error.strerror or error}")


async def _undo(starting: asyncio.Task[asyncio.subprocess.Process]) -> None:
    await asyncio.wait([starting])
    if starting.exception() is None:
        process = starting.result()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()


async def start_group(argv: Sequence[str], env: Mapping[str, str], sink: S, sitter: Sits | None = None) -> Child[S]:
    """Start a program whose output goes to `sink`. Raises as `start_process` does."""
    # A pipe of our own: asyncio's would keep wait() from returning while a grandchild holds it. It is connected first,
    # so that nothing is awaited between the start and the Child that can end it.
    reader, writer = os.pipe()
    try:
        output, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: sink, os.fdopen(reader, "rb", 0))
        try:
            process = await start_process(argv, env, output=writer)
        except BaseException:
            output.close()
            raise
    finally:
        os.close(writer)
    if sitter is not None:
        sitter.add(process.pid)
    return Child(process, output, sink, sitter)


async def spawn(launch: Launch, *, env: Mapping[str, str], backend_id: str, sitter: Sits) -> Child[LineSink]:
    """Start an engine with exactly `env` (see child_environment). Its lines go to the log as "[MODEL/N] line"."""
    sink = LineSink(lambda line: _log.info(f"[{backend_id}] {line}"))
    return await start_group(launch.argv, env, sink, sitter)


def epitaph(child: Child[LineSink]) -> str:
    """How a process ended and what it said last, for the operator."""
    code = child.returncode
    if code is None:
        how = "still running"
    elif code in _ILLEGAL:
        how = (
            "ended by SIGILL, illegal instruction: the program was built for another CPU; "
            "build it on this machine, or install a build for older CPUs"
        )
    elif code < 0:
        how = f"ended by {signal.Signals(-code).name}" if -code in list(signal.Signals) else f"ended by signal {-code}"
    else:
        how = f"exited with code {code}"
    said = "\n".join(child.sink.tail)
    return f"{how}; its last lines:\n{said}" if said else f"{how} without a word"


async def end_in_time(child: Child[S], patience: float) -> None:
    """End a child, whatever becomes of the caller. It has `patience` seconds for its own end, and is then killed."""
    with anyio.CancelScope(shield=True):
        with anyio.move_on_after(patience + _END_BUDGET) as budget:
            await child.end(patience)
        if budget.cancelled_caught:
            child.kill()
