"""A request's line looks as all others do, and keeps its place among them."""

from __future__ import annotations

import asyncio
import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from viiwork_core.observe.logging import setup_logging
from viiwork_core.observe.request_log import RequestLog

FIELDS = {
    "request_id": "req-1",
    "model": "two words",
    "backend": None,
    "reason": 'it\'s "so" = \\ \n no more',
    "peer": "größer",
    "queued_ms": 0,
    "empty": "",
}


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def both(*, json_lines: bool) -> tuple[str, str]:
    """The same line by structlog's way and by its own."""
    out = io.StringIO()
    setup_logging(json=json_lines, level="info", node="box", stream=out)

    async def tell() -> None:
        structlog.get_logger("viiwork.request").info("request", **FIELDS)
        RequestLog().tell(**FIELDS)
        logging.getLogger().handlers[0].flush()

    asyncio.run(tell())
    first, second = out.getvalue().splitlines()
    return first, second


def test_a_json_line_says_what_structlogs_says() -> None:
    first, second = (json.loads(line) for line in both(json_lines=True))
    assert second.pop("timestamp") >= first.pop("timestamp")
    assert second == first


def test_a_console_line_looks_like_structlogs() -> None:
    first, second = both(json_lines=False)
    assert second.partition(" ")[2].replace("'größer'", "größer") == first.partition(" ")[2]


def test_other_lines_wait_for_those_before() -> None:
    out = io.StringIO()
    setup_logging(json=True, level="info", stream=out)

    async def tell() -> None:
        RequestLog().tell(request_id="first")
        logging.getLogger("viiwork.node").warning("second")

    asyncio.run(tell())
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["request_id"], second["event"]) == ("first", "second")


def test_lines_come_out_by_themselves() -> None:
    out = io.StringIO()
    setup_logging(json=True, level="info", stream=out)

    async def tell() -> None:
        RequestLog().tell(request_id="one")
        RequestLog().tell(request_id="two")
        async with asyncio.timeout(10):
            while not out.getvalue():  # noqa: ASYNC110  # a stream has no event
                await asyncio.sleep(0.01)

    asyncio.run(tell())
    assert [json.loads(line)["request_id"] for line in out.getvalue().splitlines()] == ["one", "two"]


def test_a_quiet_level_says_nothing() -> None:
    out = io.StringIO()
    setup_logging(json=True, level="warning", stream=out)
    asyncio.run(_told())
    assert out.getvalue() == ""


async def _told() -> None:
    RequestLog().tell(request_id="one")
    logging.getLogger().handlers[0].flush()
