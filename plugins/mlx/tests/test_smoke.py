"""One server, one answer: what is quick enough to be tried each time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .conftest import Server, until, user


def test_a_server_answers(start: Callable[..., Server], tiny: Path) -> None:
    server = start(tiny)
    until(server.ready, "it is ready")
    assert server.chat([user("hello")])["usage"]["completion_tokens"] == 12
    assert server.chat([user("hello")])["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
