"""What a member's refusal of an upload asks for."""

from __future__ import annotations

import json

import pytest

from viiwork_core.errors import BaseMissing, CacheRefused, ResumeFrom
from viiwork_core.node.upload import _refusal


def body(code: str) -> bytes:
    return json.dumps({"error": {"message": "no", "code": code}}).encode()


def test_what_a_refusal_asks_for() -> None:
    assert type(_refusal("b answered 409", body("base_missing"), "")) is BaseMissing
    part = _refusal("b answered 409", body("resume"), "1048576")
    assert isinstance(part, ResumeFrom)
    assert part.offset == 1 << 20


@pytest.mark.parametrize(
    ("said", "offset"),
    [
        (b"", ""),
        (b"\xff", ""),
        (b"[]", ""),
        (b'{"error": "no"}', ""),
        (b'{"error": {}}', ""),
        (body("cache_refused"), "5"),
        (body("resume"), ""),
        (body("resume"), "-1"),
        (body("resume"), "1" * 17),
    ],
)
def test_anything_else_is_plainly_a_refusal(said: bytes, offset: str) -> None:
    refusal = _refusal("b answered 422", said, offset)
    assert type(refusal) is CacheRefused
    assert refusal.message.startswith("b answered 422: ")
