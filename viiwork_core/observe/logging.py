"""Logs: one line an event, to stderr, for people or as JSON. Nothing is configured on import."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, TextIO

import structlog

from viiwork_core.observe.request_log import LineHandler, console_line, json_line

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

Logger = structlog.stdlib.BoundLogger

_QUIET = ("httpx", "httpcore", "hypercorn.access", "asyncio")
"""Libraries that tell each request or callback at level info or debug."""


def setup_logging(json: bool, level: str, *, node: str | None = None, stream: TextIO | None = None) -> None:
    """Send the node's and all libraries' records to `stream` (stderr), each with `node` if given.

    `level` is a standard name such as "info". Called once by a command; a second call replaces the first. Raises
    ValueError for an unknown level.
    """
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ValueError(f"{level!r} is no log level; use debug, info, warning or error")
    out = sys.stderr if stream is None else stream
    shared = _shared(node)
    line = json_line if json else None if out.isatty() else console_line
    handler = LineHandler(out, line, node)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(foreign_pre_chain=shared, processors=_rendering(json, out.isatty()))
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(number)
    for name in _QUIET:
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def get_logger(component: str) -> Logger:
    """A logger that names the part of the node that speaks. Safe to make on import: it looks up its setup when used."""
    logger: Logger = structlog.stdlib.get_logger(f"viiwork.{component}", component=component)
    return logger


def _shared(node: str | None) -> list[Processor]:
    """What every record passes, ours and the libraries'."""

    def add_node(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        if node is not None:
            event.setdefault("node", node)
        return event

    def add_component(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        # A library's record has only the name of its logger.
        record = event.get("_record")
        if record is not None:
            event.setdefault("component", record.name)
        return event

    return [
        structlog.contextvars.merge_contextvars,
        add_node,
        add_component,
        structlog.stdlib.add_log_level,
        structlog.stdlib.PositionalArgumentsFormatter(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]


def _rendering(json: bool, colors: bool) -> list[Processor]:
    last: list[Processor] = (
        [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
        if json
        else [structlog.dev.ConsoleRenderer(colors=colors)]
    )
    return [structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last]
