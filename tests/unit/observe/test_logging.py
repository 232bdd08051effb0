"""Logs of the node and of libraries go one way."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from viiwork_core.observe.logging import get_logger, setup_logging


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def lines(out: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_json_lines_carry_node_and_component() -> None:
    log, out = get_logger("mesh"), io.StringIO()
    setup_logging(json=True, level="info", node="box", stream=out)
    log.info("member joined", member="b")
    log.debug("too quiet")
    (line,) = lines(out)
    assert line.pop("timestamp")
    assert line == {"event": "member joined", "member": "b", "level": "info", "node": "box", "component": "mesh"}


def test_library_records_go_the_same_way() -> None:
    out = io.StringIO()
    setup_logging(json=True, level="info", node="box", stream=out)
    logging.getLogger("hypercorn.error").warning("Running on %s", "127.0.0.1")
    logging.getLogger("httpx").info("too chatty")
    (line,) = lines(out)
    assert (line["event"], line["level"], line["component"]) == ("Running on 127.0.0.1", "warning", "hypercorn.error")


def test_an_exception_is_part_of_its_line() -> None:
    out = io.StringIO()
    setup_logging(json=True, level="error", stream=out)
    try:
        _ = 1 // 0
    except ZeroDivisionError:
        get_logger("proxy").exception("failed")
    (line,) = lines(out)
    assert "ZeroDivisionError" in str(line["exception"])
    assert "node" not in line


def test_the_console_form_is_for_people() -> None:
    out = io.StringIO()
    setup_logging(json=False, level="debug", stream=out)
    get_logger("mesh").debug("here", count=3)
    assert "here" in out.getvalue()
    assert "count=3" in out.getvalue()
    assert "\x1b" not in out.getvalue()


def test_a_second_setup_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    setup_logging(json=True, level="info", stream=first)
    setup_logging(json=True, level="info", stream=second)
    get_logger("mesh").info("once")
    assert first.getvalue() == ""
    assert len(lines(second)) == 1


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ValueError, match="no log level"):
        setup_logging(json=True, level="loud")
