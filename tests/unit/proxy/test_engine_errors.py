"""An engine's refusal as one line of JSON in OpenAI's shape."""

from __future__ import annotations

import json

import pytest

from viiwork_core.proxy.engine_errors import engine_error


@pytest.mark.parametrize(
    ("status", "text", "message", "kind", "code"),
    [
        (400, b'{"error":{"message":"bad","type":"x","code":7}}', "bad", "x", 7),
        (400, b'{\n"error": {\n"message": "bad",\n"type": "x"}}', "bad", "x", 400),
        (400, b'{"detail": "no"}', 'the engine answered 400: {"detail": "no"}', "invalid_request", 400),
        (500, b"[" * 100_000, f"the engine answered 500: {'[' * 1000}", "server_error", 500),
        (502, b"", "the engine answered 502", "server_error", 502),
        (500, b"\xff\n\n", "the engine answered 500: \ufffd\n\n", "server_error", 500),
        (200, b"{}", "the engine answered a request for a stream without one", "server_error", 200),
    ],
)
def test_it_keeps_what_the_engine_said(status: int, text: bytes, message: str, kind: str, code: int) -> None:
    line = engine_error(status, text)
    assert b"\n" not in line
    error = json.loads(line)["error"]
    assert (error["message"], error["type"], error["code"]) == (message, kind, code)
