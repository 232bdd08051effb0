"""The node's end of the pipe to its sitter."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
import structlog

from viiwork_core.engines.environment import clean_environment
from viiwork_core.engines.process import start_process
from viiwork_core.errors import ViiworkError

_log = structlog.get_logger("viiwork.engines")

_SCRIPT = Path(__file__).with_name("sitter.py")
_END_BUDGET = 5.0
RESTART_AFTER = 1.0
"""Seconds before a sitter that ended is replaced, and before another attempt where that failed."""


class Sitter:
    """A running sitter that knows the process groups of this node. A sitter that ends by itself is replaced."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id
        self._groups: set[int] = set()
        self._pipe: int | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Process id of the sitter."""
        return None if self._process is None else self._process.pid

    async def __aenter__(self) -> Self:
        await self._start()
        self._keeper = asyncio.create_task(self._keep())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._keeper is not None
        assert self._process is not None
        self._keeper.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([self._keeper])
        self._close()
        with anyio.CancelScope(shield=True), anyio.move_on_after(_END_BUDGET):
            await self._process.wait()

    def add(self, pgid: int) -> None:
        """Put a process group into the sitter's care."""
        self._groups.add(pgid)
        self._tell(f"+{pgid}\n")

    def remove(self, pgid: int) -> None:
        """The group has ended."""
        self._groups.discard(pgid)
        self._tell(f"-{pgid}\n")

    async def _start(self) -> None:
        reader, writer = os.pipe()
        try:
            self._process = await start_process(
                (sys.executable, "-I", str(_SCRIPT), self._node_id), clean_environment(), stdin=reader
            )
        except BaseException:
            os.close(writer)
            raise
        finally:
            os.close(reader)
        os.set_blocking(writer, False)
        self._pipe = writer
        for pgid in self._groups:
            self._tell(f"+{pgid}\n")

    async def _keep(self) -> None:
        while True:
            assert self._process is not None
            await self._process.wait()
            self._close()
            _log.warning("the sitter ended and is started again: until then a killed node leaves its engines behind")
            while not await self._restarted():
                continue

    async def _restarted(self) -> bool:
        await anyio.sleep(RESTART_AFTER)
        try:
            await self._start()
        except (ViiworkError, OSError) as error:
            _log.error("the sitter cannot be started again", reason=str(error))
            return False
        return True

    def _tell(self, line: str) -> None:
        if self._pipe is not None:
            with suppress(BrokenPipeError, BlockingIOError):  # _keep replaces a sitter that is gone
                os.write(self._pipe, line.encode())

    def _close(self) -> None:
        if self._pipe is not None:
            os.close(self._pipe)
            self._pipe = None
