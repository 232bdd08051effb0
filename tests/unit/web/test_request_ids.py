"""An answer's id in the header that Anthropic's clients read."""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from typing import Any

import pytest

from viiwork_core.proxy.headers import Raw
from viiwork_core.web.request_ids import is_anthropic, told_twice


def sent(*headers: Raw) -> list[Raw]:
    """The headers that a client gets of an answer with these."""
    got: list[MutableMapping[str, Any]] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        got.append(message)

    async def scene() -> None:
        twice = told_twice(send)
        await twice({"type": "http.response.start", "status": 200, "headers": list(headers)})
        await twice({"type": "http.response.body", "body": b"{}", "more_body": False})

    asyncio.run(scene())
    assert got[1]["body"] == b"{}"
    return list(got[0]["headers"])


def test_the_node_s_id_stands_there_once_whatever_an_engine_or_a_peer_said() -> None:
    answer = sent((b"Request-Id", b"req_engine"), (b"x-request-id", b"mine"), (b"request-id", b"req_peer"))
    assert answer == [(b"x-request-id", b"mine"), (b"request-id", b"mine")]


def test_an_answer_without_an_id_gets_none() -> None:
    assert sent((b"content-type", b"text/plain")) == [(b"content-type", b"text/plain")]


@pytest.mark.parametrize(
    ("path", "whose"),
    [
        ("/v1/messages", True),
        ("/v1/messages/count_tokens", True),
        ("/v1/messages-of-others", False),
        ("/v1/chat/completions", False),
    ],
)
def test_which_paths_are_anthropic_s(path: str, whose: bool) -> None:
    assert is_anthropic(path) is whose
