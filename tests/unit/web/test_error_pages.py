"""Errors as answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from viiwork_core.errors import NoFreeSlot, NotFound, ViiworkError
from viiwork_core.web import error_pages


def answered(error: ViiworkError) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    asyncio.run(error_pages.send_error(send, error, request_id="r"))
    return sent


@pytest.mark.parametrize(
    ("error", "message", "retry_after"),
    [
        (NotFound("no such thing", remedy="look elsewhere"), "no such thing; look elsewhere", None),
        (NoFreeSlot("no free slot for m within 20s", retry_after=2), "no free slot for m within 20s", b"2"),
    ],
)
def test_an_error_has_openai_s_shape(error: ViiworkError, message: str, retry_after: bytes | None) -> None:
    start, body = answered(error)
    headers = dict(start["headers"])
    assert start["status"] == error.status
    assert json.loads(body["body"]) == {
        "error": {"message": message, "type": error.type, "code": error.code, "src": "viiwork"}
    }
    assert headers[b"content-length"] == str(len(body["body"])).encode()
    assert (headers.get(b"retry-after"), headers[b"x-request-id"]) == (retry_after, b"r")
    assert not body["more_body"]
