"""One line a request, put together here and not by structlog and `logging`.

Their way costs more than choosing a place and relaying a short answer do. Lines in colours, for a terminal, still go
it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

import msgspec
import structlog

Line = Callable[[dict[str, object]], str]
"""Makes a line of its fields, among them event, level and timestamp."""

GATHER_S = 0.05
"""Seconds for which lines are gathered: a write costs more than making a line."""

_NAME = "viiwork.request"
_BARE = re.compile(r"[!#-&(-<>-\[\]-~]*")
"""What needs no quotes: printable, without space, quotes, = and backslash."""


class LineHandler(logging.StreamHandler[TextIO]):
    """Where all lines go out. `line` makes one without a LogRecord; None: none can be made so."""

    def __init__(self, stream: TextIO, line: Line | None, node: str | None) -> None:
        super().__init__(stream)
        self._line = line
        self._own: dict[str, object] = {} if node is None else {"node": node}
        self._waiting: list[str] = []

    def info(self, event: str, fields: dict[str, object]) -> bool:
        """Write a line of level info, a moment later with those that come meanwhile; False: it must go the other way.

        Called on a running event loop.
        """
        if self._line is None:
            return False
        stamp = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        text = self._line({**fields, "event": event, **self._own, "level": "info", "timestamp": stamp})
        self.acquire()
        try:
            if not self._waiting:
                asyncio.get_running_loop().call_later(GATHER_S, self.flush)
            self._waiting.append(text)
        finally:
            self.release()
        return True

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, after the lines that came before it."""
        self._write_waiting()
        super().emit(record)

    def flush(self) -> None:
        """Write all that waits; also called when the process ends."""
        self.acquire()
        try:
            self._write_waiting()
            super().flush()
        finally:
            self.release()

    def _write_waiting(self) -> None:
        waiting, self._waiting = self._waiting, []
        if waiting:
            self.stream.write("".join(waiting))


class RequestLog:
    """Safe to make on import: it looks up its setup when used."""

    def __init__(self) -> None:
        self._logger = logging.getLogger(_NAME)
        self._other = structlog.get_logger(_NAME)

    def tell(self, **fields: object) -> None:
        """Log what a request was and how it ended."""
        handlers = logging.getLogger().handlers
        handler = handlers[0] if handlers else None
        if not isinstance(handler, LineHandler):
            # Not set up: whoever has done something else sees what structlog does.
            self._other.info("request", **fields)
        elif self._logger.isEnabledFor(logging.INFO) and not handler.info("request", fields):
            self._other.info("request", **fields)


def json_line(fields: dict[str, object]) -> str:
    """The line as one JSON object."""
    return msgspec.json.encode(fields).decode() + "\n"


def console_line(fields: dict[str, object]) -> str:
    """The line as structlog's ConsoleRenderer writes it without colours."""
    stamp, level, event = fields.pop("timestamp"), fields.pop("level"), fields.pop("event")
    rest = " ".join([f"{name}={_shown(fields[name])}" for name in sorted(fields)])
    return f"{stamp} [{level:<9}] {event:<30} {rest}\n"


def _shown(value: object) -> str:
    if not isinstance(value, str):
        return str(value)
    return value if _BARE.fullmatch(value) else repr(value)
