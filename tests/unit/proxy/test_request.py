"""A request: the few fields that are read."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from viiwork_core.errors import BodyTooLarge, InvalidRequest, RequestLate
from viiwork_core.proxy import request as module
from viiwork_core.proxy.body import Body
from viiwork_core.proxy.request import (
    LARGE,
    LONGEST_NAME,
    ClientGone,
    InferenceRequest,
    Whose,
    build,
    parse_body,
    pinned_host,
    read_body,
    request_id,
    session_value,
    target,
)

CHAT = "/v1/chat/completions"


def scope(path: str = CHAT, query: bytes = b"", headers: Iterable[tuple[bytes, bytes]] = ()) -> dict[str, Any]:
    return {"path": path, "raw_path": path.encode(), "query_string": query, "headers": list(headers)}


def request(raw: bytes, path: str = CHAT) -> InferenceRequest:
    return build(scope(path), Body(raw), Whose(), pin=None, rid="r")


@pytest.mark.parametrize("raw", [b"{}", b'{"model": null}', b'{"model": 7}', b'{"model": ["m"]}', b'{"model": ""}'])
def test_a_model_is_required(raw: bytes) -> None:
    with pytest.raises(InvalidRequest, match="model is required"):
        request(raw)


def test_a_name_that_no_model_can_have_is_not_repeated_everywhere() -> None:
    request(b'{"model": "%b"}' % (b"m" * LONGEST_NAME))
    with pytest.raises(InvalidRequest, match="longer than") as error:
        request(b'{"model": "%b"}' % (b"m" * (LONGEST_NAME + 1)))
    assert len(error.value.message) < 100


@pytest.mark.parametrize(
    ("raw", "stream", "wants_usage"),
    [
        (b'{"model": "m"}', False, False),
        (b'{"model": "m", "stream": true}', True, False),
        (b'{"model": "m", "stream": "true"}', False, False),
        (b'{"model": "m", "stream": true, "stream_options": {"include_usage": true}}', True, True),
        (b'{"model": "m", "stream": true, "stream_options": {"include_usage": 1}}', True, False),
        (b'{"model": "m", "stream": true, "stream_options": null}', True, False),
    ],
)
def test_what_is_read_of_streaming(raw: bytes, stream: bool, wants_usage: bool) -> None:
    made = request(raw)
    assert (made.stream, made.wants_usage) == (stream, wants_usage)


@pytest.mark.parametrize(
    ("path", "fields", "weight"),
    [
        (CHAT, b"", 1),
        (CHAT, b', "n": 3', 3),
        (CHAT, b', "n": 0', 1),
        (CHAT, b', "n": -2', 1),
        (CHAT, b', "n": true', 1),
        (CHAT, b', "n": "3"', 1),
        (CHAT, b', "n": null', 1),
        ("/v1/completions", b', "prompt": "one"', 1),
        ("/v1/completions", b', "prompt": ["one", "two"]', 2),
        ("/v1/completions", b', "prompt": ["one", "two"], "n": 2', 4),
        ("/v1/completions", b', "prompt": []', 1),
        ("/v1/completions", b', "prompt": [1, 2, 3]', 1),
        ("/v1/completions", b', "prompt": [-1, 2]', 1),
        ("/v1/completions", b', "prompt": [[1, 2], [3]]', 2),
        ("/v1/completions", b', "prompt": ["\xc3\xbf", "two"]', 2),
        ("/v1/embeddings", b', "input": ["one", "two", "three"]', 3),
        ("/v1/embeddings", b', "input": "one"', 1),
    ],
)
def test_a_request_weighs_its_answers(path: str, fields: bytes, weight: int) -> None:
    assert request(b'{"model": "m"' + fields + b"}", path).weight == weight


def test_bytes_that_nobody_reads_are_nobody_s_business() -> None:
    raw = b'{"model": "m", "prompt": "\xc3\xbf\xef\xbf\xbe", "seed": 1e400}'
    made = request(raw, "/v1/completions")
    assert made.body.edited() == raw
    assert made.query.prompt_tokens == len(raw) // 4


@pytest.mark.parametrize("query", [b"", b"host=", b"host=mesh", b"host=%20", b"other=1"])
def test_no_host_is_asked_for(query: bytes) -> None:
    assert pinned_host(query) is None


@pytest.mark.parametrize("query", [b"host=gpu-2.lan", b"a=b&host=gpu-2.lan", b"host=gpu-2.lan&host=other"])
def test_a_host_is_asked_for(query: bytes) -> None:
    assert pinned_host(query) == "gpu-2.lan"


@pytest.mark.parametrize("query", [b"host=a/b", b"host=a%0ab", b"host=%ff", b"host=" + b"a" * 254, b"host=a%20b"])
def test_what_is_no_host_is_refused(query: bytes) -> None:
    with pytest.raises(InvalidRequest, match="invalid host parameter"):
        pinned_host(query)


def test_the_client_s_request_id_is_kept_if_it_is_a_plain_word() -> None:
    assert request_id([(b"X-Request-Id", b"abc-1:2.3_4")]) == "abc-1:2.3_4"
    for odd in (b"", b"a b", b"a" * 129, b"\xff", b"a;b"):
        made = request_id([(b"X-Request-Id", odd)])
        assert made.startswith("req-")
        assert made != request_id([])


def test_affinity_comes_before_the_session_id() -> None:
    headers = [(b"X-Session-Id", b"b"), (b"X-Session-Affinity", b"a")]
    assert session_value(headers) == "a"
    assert session_value(headers[:1]) == "b"
    assert session_value([]) is None


def test_the_target_is_as_it_came() -> None:
    assert target(scope(query=b"host=a%20b")) == f"{CHAT}?host=a%20b"
    assert target(scope()) == CHAT


# Reading the body


def read(messages: list[dict[str, Any]], limit: int = 10, headers: Iterable[tuple[bytes, bytes]] = ()) -> bytes:
    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    return asyncio.run(read_body(scope(headers=headers), receive, limit))


def part(data: bytes, *, more: bool) -> dict[str, Any]:
    return {"type": "http.request", "body": data, "more_body": more}


def test_a_body_comes_in_parts() -> None:
    assert read([part(b"12345", more=True), part(b"", more=True), part(b"67890", more=False)]) == b"1234567890"


def test_a_body_that_says_it_is_too_large_is_not_read() -> None:
    messages = [part(b"", more=True)]
    with pytest.raises(BodyTooLarge, match="over 10 bytes"):
        read(messages, headers=[(b"content-length", b"11")])
    assert len(messages) == 1


def test_a_body_that_turns_out_too_large_is_not_read_further() -> None:
    messages = [part(b"123456", more=True), part(b"78901", more=True), part(b"2" * 1000, more=True)]
    with pytest.raises(BodyTooLarge):
        read(messages)
    assert len(messages) == 1


def test_a_client_that_leaves_while_sending() -> None:
    with pytest.raises(ClientGone):
        read([part(b"123", more=True), {"type": "http.disconnect"}])


def test_a_client_that_goes_silent_while_sending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE_S", 0.05)
    messages = [part(b"123", more=True)]

    async def receive() -> dict[str, Any]:
        return messages.pop(0) if messages else await asyncio.Event().wait()  # type: ignore[func-returns-value]  # never

    with pytest.raises(RequestLate, match="nothing of the body"):
        asyncio.run(read_body(scope(), receive, 10))


def test_a_slow_client_that_is_never_silent_for_long_is_heard_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SILENCE_S", 0.5)
    messages = [part(b"1", more=True)] * 9 + [part(b"2", more=False)]

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.1)  # ten of them take longer than one may
        return messages.pop(0)

    assert asyncio.run(read_body(scope(), receive, 10)) == b"1111111112"


@pytest.mark.parametrize("size", [10, LARGE])
def test_large_bodies_are_parsed_the_same(size: int) -> None:
    raw = b'{"model": "%b"}' % (b"m" * size)
    body = asyncio.run(parse_body(raw))
    assert body.raw == raw
    assert body.get("model") == "m" * size
