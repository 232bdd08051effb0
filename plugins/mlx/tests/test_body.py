"""What is refused before mlx_lm sees it. Needs no MLX."""

from __future__ import annotations

import json
from typing import Any

import pytest

from viiwork_mlx.server.body import BadRequest, read_body
from viiwork_mlx.server.memory import room

MESSAGES = [{"role": "user", "content": "hello"}]


def test_a_good_body_goes_on_as_it_came() -> None:
    raw = b'{ "messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}], "stop": "x", "n": 1 }'
    assert read_body(raw) is raw


def test_fields_that_are_null_are_left_out() -> None:
    body = {"messages": MESSAGES, "max_tokens": None, "temperature": None, "stop": None, "seed": 1}
    assert json.loads(read_body(json.dumps(body).encode())) == {"messages": MESSAGES, "seed": 1}


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{not json", "Invalid JSON in request body"),
        (b"\xff", "Invalid JSON in request body"),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a":' + b"[" * 200_000, "nested too deeply"),
        ([], "JSON dictionary"),
        ({"prompt": ["a", "b"]}, "prompt must be a string"),
        ({"messages": "hello"}, "messages must be a list of objects"),
        ({"messages": ["hello"]}, "messages must be a list of objects"),
        ({"messages": MESSAGES, "stop": [1]}, "stop must be"),
        ({"messages": MESSAGES, "stop": {"a": 1}}, "stop must be"),
        ({"messages": MESSAGES, "stop": ["a"] * 65}, "stop must be"),
        ({"messages": MESSAGES, "stream_options": 5}, "stream_options must be"),
        ({"messages": MESSAGES, "stream_options": {"include_usage": 1}}, "stream_options must be"),
        ({"messages": MESSAGES, "seed": -1}, "seed must be"),
        ({"messages": MESSAGES, "seed": 2**64}, "seed must be"),
        ({"messages": MESSAGES, "n": 2}, "n must be 1"),
        ({"messages": MESSAGES, "logit_bias": {"1": None}}, "logit_bias must be"),
        ({"messages": MESSAGES, "logit_bias": [1]}, "logit_bias must be"),
        ({"messages": MESSAGES, "chat_template_kwargs": 5}, "chat_template_kwargs must be"),
        ({"messages": MESSAGES, "chat_template_kwargs": {"chat_template": "{{ 1 }}"}}, "chat_template_kwargs must be"),
        ({"messages": MESSAGES, "chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs must be"),
    ],
)
def test_what_mlx_lm_would_trip_over_is_refused(body: Any, words: str) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(BadRequest, match=words):
        read_body(raw)


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/a.png", "https://host/a.png", "file:///etc/passwd"])
@pytest.mark.parametrize("kind", ["image_url", "input_image", "image"])
def test_no_picture_is_fetched(kind: str, url: str) -> None:
    for picture in (url, {"url": url}):
        part = {"type": kind, "image_url": picture}
        body = {"messages": [{"role": "user", "content": [part]}]}
        with pytest.raises(BadRequest, match="nothing is fetched"):
            read_body(json.dumps(body).encode())


def test_a_picture_that_came_along_is_taken() -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    raw = json.dumps({"messages": [{"role": "user", "content": [part]}]}).encode()
    assert read_body(raw) is raw


def test_caches_get_what_metal_leaves_beside_the_model() -> None:
    assert room({"max_recommended_working_set_size": 100_000_000_000}, 60_000_000_000) == 30_000_000_000
    assert room({"max_recommended_working_set_size": 100}, 100) == 1
    assert room({"architecture": "x86_64"}, 0) is None
