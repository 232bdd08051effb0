"""What cannot be served is refused in OpenAI's shape, with what to do about it, and harms nobody else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from http.client import HTTPConnection
from typing import Any

import httpx
import pytest
from http_node import CHAT, Answer, Node, ask, chat, connected

LIMIT = 2 << 20
MESSAGES = "/v1/messages"


def got(node: Node, body: bytes, **more: object) -> Answer:
    return asyncio.run(ask(node, body, **more))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not a JSON object"),
        (b"hello", "not a JSON object"),
        (b"[1, 2]", "not a JSON object"),
        (b'{"model": "scripted"', "not a JSON object"),
        (b"\xff\xfe\x00", "not a JSON object"),
        (b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}", "not a JSON object"),
        (b'{"a":' * 200_000, "not a JSON object"),
        (b"{}", "model is required"),
        (b'{"model": 7}', "model is required"),
        (b'{"model": ""}', "model is required"),
        (b'{"model": {"name": "scripted"}}', "model is required"),
        (b'{"model": "\xff"}', "not a JSON object: it is not UTF-8 text"),
        (b'{"model": "scripted", "prompt": "\xff\xfe"}', "not a JSON object: it is not UTF-8 text"),
        (b'{"model": "%b"}' % (b"m" * 10_000), "model is longer than"),
        (b'{"model": "scripted", "n": 1e400}', "n:"),
    ],
)
def test_a_body_that_cannot_be_served(node: Node, body: bytes, words: str) -> None:
    answer = got(node, body, headers=[("X-Request-Id", "bad-body")])
    assert answer.status == 400
    assert (answer.error["type"], answer.error["code"]) == ("invalid_request", "invalid_request")
    assert words in answer.error["message"]
    assert answer.headers["x-request-id"] == "bad-body"
    assert len(answer.body) < 1000


@pytest.mark.parametrize("name", ["x", "scripted ", "SCRIPTED", "\\u0000", "a\\nb", "<script>", "\\ud83d\\ude00"])
def test_an_unknown_model_is_answered_with_the_known_ones(node: Node, name: str) -> None:
    answer = got(node, b'{"model": "%b"}' % name.encode())
    assert (answer.status, answer.error["type"]) == (404, "not_found")
    assert "is not served by any node" in answer.error["message"]
    assert "scripted-done" in answer.error["message"]


@pytest.mark.parametrize("host", ["a/b", "a%0d%0aX-Evil:1", "%ff", "a" * 300, "gpu%202"])
def test_a_host_that_is_none(node: Node, host: str) -> None:
    answer = got(node, chat("scripted"), path=f"{CHAT}?host={host}")
    assert (answer.status, answer.error["type"]) == (400, "invalid_request")
    assert "invalid host parameter" in answer.error["message"]


def test_a_host_that_nobody_has(node: Node) -> None:
    answer = got(node, chat("scripted"), path=f"{CHAT}?host=elsewhere")
    assert answer.status == 404
    assert answer.error["message"].startswith('model "scripted" is not served by host "elsewhere"')
    for host in ("one", "mesh", ""):
        assert got(node, chat("scripted"), path=f"{CHAT}?host={host}").status == 200


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "OPTIONS"])
@pytest.mark.parametrize("path", [CHAT, "/v1/completions", "/v1/embeddings"])
def test_other_methods(node: Node, method: str, path: str) -> None:
    answer = got(node, b"", method=method, path=path)
    assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")
    assert "use POST" in answer.error["message"]
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize("path", ["/v1", "/v1/chat/completions/", "/v1/nothing", "/slots", "/v1//models", "/%00"])
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_other_paths(node: Node, method: str, path: str) -> None:
    answer = got(node, b"{}" if method == "POST" else b"", method=method, path=path)
    assert (answer.status, answer.error["type"]) == (404, "not_found")
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(("method", "path"), [("GET", MESSAGES), ("POST", f"{MESSAGES}/nothing"), ("POST", MESSAGES)])
def test_anthropic_s_paths_name_a_refusal_in_its_clients_header_too(node: Node, method: str, path: str) -> None:
    answer = got(node, b"{}", method=method, path=path)
    assert answer.status >= 400
    assert answer.headers["request-id"] == answer.headers["x-request-id"]


def test_other_paths_have_one_name_for_it(node: Node) -> None:
    assert "request-id" not in got(node, b"{}", path="/v1/messages-of-others").headers


def test_an_engine_s_other_paths_are_out_of_reach(node: Node) -> None:
    for path in ("/load", "/seen", "/refuse", "/v1/chat/../../seen"):
        assert got(node, b"[]", path=path).status == 404


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "DELETE"])
def test_the_read_endpoints_and_their_methods(node: Node, method: str) -> None:
    for path in ("/v1/models", "/v1/status", "/health", "/v1/capacity"):
        answer = got(node, b"", method=method, path=path)
        assert answer.status == (200 if method in ("GET", "HEAD") else 405)
        assert not answer.broken
        if method == "HEAD":
            assert answer.body == b""
        elif method != "GET":
            assert answer.error["code"] == "method_not_allowed"


def test_head_on_an_inference_path(node: Node) -> None:
    answer = got(node, b"", method="HEAD")
    assert (answer.status, answer.body, answer.broken) == (405, b"", False)


# Too large


def test_a_body_just_within_the_limit_is_served(node: Node) -> None:
    frame = len(chat("scripted-plain", None, pad=""))
    assert got(node, chat("scripted-plain", None, pad="x" * (LIMIT - frame))).status == 200
    assert got(node, chat("scripted-plain", None, pad="x" * (LIMIT - frame + 1))).status == 413


def test_a_large_body_is_refused_before_it_is_sent(node: Node) -> None:
    async def scene() -> Answer:
        async with asyncio.timeout(5), connected(node) as client:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: node\r\nContent-Length: {1 << 40}\r\n\r\n"
            await client.send(head.encode())
            answer = await client.answer()
            return await client.read(answer)

    answer = asyncio.run(scene())
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")
    assert f"over {LIMIT} bytes" in answer.error["message"]


def test_a_large_body_without_a_length_is_refused_while_it_is_sent(node: Node) -> None:
    async def scene() -> tuple[Answer, int]:
        async with asyncio.timeout(10), connected(node) as client:
            await client.send(f"POST {CHAT} HTTP/1.1\r\nHost: node\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
            answering = asyncio.ensure_future(client.answer())
            sent = 0
            while not answering.done():
                await client.send(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
                sent += 0x10000
                await asyncio.sleep(0)
            return await client.read(await answering), sent

    answer, sent = asyncio.run(scene())
    assert answer.status == 413
    assert sent < 32 * LIMIT, "what fits into the buffers on the way, no more"


@pytest.mark.parametrize("length", [True, False])
def test_a_client_that_sends_all_first_still_reads_the_refusal(node: Node, length: bool) -> None:
    size = 40 << 20
    data = b"x" * size if length else (b"x" * (1 << 20) for _ in range(size >> 20))
    status, body = sent_whole(node, data)
    assert (status, body["error"]["code"]) == (413, "body_too_large")
    with httpx.Client(trust_env=False) as client:
        answer = client.post(f"http://{node.host}:{node.port}{CHAT}", content=b"x" * size)
    assert answer.status_code == 413


def sent_whole(node: Node, data: bytes | Iterable[bytes], path: str = CHAT, **headers: str) -> tuple[int, Any]:
    """What a client reads that sends everything before it reads anything."""
    connection = HTTPConnection(node.host, node.port, timeout=20)
    try:
        connection.request("POST", path, data, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


# Browsers


@pytest.mark.parametrize(
    ("origin", "host", "status"),
    [
        ("http://evil.example", "node", 403),
        ("https://node.evil.example", "node", 403),
        ("null", "node", 403),
        ("http://[::1", "node", 403),
        ("http://evil.example", "[bad", 403),
        ("null", "", 403),
        ("file://", "node", 403),
        ("http://node", "node:8086", 200),
        ("http://node:3000", "node", 200),
        ("http://localhost:5173", "node", 200),
        ("http://127.0.0.1", "node", 200),
        ("http://[::1]:80", "node", 200),
    ],
)
def test_a_page_may_write_to_its_own_node_only(node: Node, origin: str, host: str, status: int) -> None:
    body = chat("scripted")

    async def scene() -> Answer:
        async with asyncio.timeout(5), connected(node) as client:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\nContent-Length: {len(body)}\r\n\r\n"
            await client.send(head.encode() + body)
            return await client.read(await client.answer())

    answer = asyncio.run(scene())
    assert answer.status == status
    if status == 403:
        assert answer.error["type"] == "forbidden"
        assert answer.headers["x-request-id"]


def test_a_foreign_page_with_a_large_body_reads_its_refusal(node: Node) -> None:
    status, _ = sent_whole(node, b"x" * (20 << 20), Origin="http://evil.example")
    assert status == 403


@pytest.mark.parametrize("path", ["/v1/nothing", "/v1/models", "/v1/status"])
def test_a_large_body_where_none_belongs_is_answered_too(node: Node, path: str) -> None:
    status, body = sent_whole(node, b"x" * (20 << 20), path)
    assert status in (404, 405, 413)
    assert body["error"]["src"] == "viiwork"


def test_a_foreign_page_may_read(node: Node) -> None:
    assert got(node, b"", method="GET", path="/v1/models", headers=[("Origin", "http://evil.example")]).status == 200


# Not even HTTP


@pytest.mark.parametrize(
    "raw",
    [
        b"\x00\x01\x02\x03\r\n\r\n",
        b"GET\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: -5\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nX: \x00\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n",
        b"POST /v1/\xff HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        b"GET /nowhere HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
        b"GET /nowhere HTTP/9.9\r\nHost: a\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
)
def test_garbage_is_answered_or_hung_up_on(node: Node, raw: bytes) -> None:
    async def scene() -> bytes:
        async with asyncio.timeout(5), connected(node) as client:
            await client.send(raw)
            client.writer.write_eof()
            try:
                return await client.reader.read(1 << 16)
            except ConnectionResetError:
                return b""

    said = asyncio.run(scene())
    assert said == b"" or said.startswith(b"HTTP/1.1 4")
    assert got(node, chat("scripted")).status == 200
    assert "Traceback" not in node.log()


@pytest.mark.parametrize(
    "headers",
    [
        [("X-Odd", "\x80\xff" * 10)],
        [("X-Many", str(number)) for number in range(500)],
        [("X-Request-Id", "a b c"), ("X-Session-Affinity", "\xff" * 100)],
        [("X-Viiwork-Forwarded", "somebody"), ("X-Viiwork-Session", "../../etc")],
        [("X-Viiwork-Forwarded", "x" * 5000)],
        [("Content-Type", "text/plain"), ("Accept", "nothing/*"), ("Range", "bytes=0-1")],
        [("Content-Encoding", "gzip")],
    ],
)
def test_odd_headers_are_no_obstacle(node: Node, headers: Sequence[tuple[str, str]]) -> None:
    answer = got(node, chat("scripted"), headers=headers)
    assert answer.status == 200, answer.body
    assert json.loads(answer.body)["object"] == "chat.completion"
