"""Ways around the door of a real node with API keys, byte for byte: none leads anywhere, and nothing leaks."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from http_node import CHAT, Node, chat, model, started, streamed, until

from viiwork_core.security.keys import digest_of, hash_text, new_token

TOKEN = new_token()
BEARER = f"Authorization: Bearer {TOKEN}"
OPERATOR = "X-Viiwork-Operator: "


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    keys = [{"name": "alice", "hash": hash_text(digest_of(TOKEN))}]
    config = {"api": {"port": 0, "keys": keys}, "health": {"interval": "0.3s"}, "models": [model("m")]}
    with started("keyed", tmp_path_factory.mktemp("tricks") / "node", config, healthy=False) as node:
        until(lambda: b'"healthy"' in sent(node, "GET /v1/status HTTP/1.1", BEARER), "its backend is healthy")
        yield node


def exchanged(node: Node, data: bytes) -> bytes:
    """All that a node answers to these bytes, until it ends the connection."""
    with socket.create_connection((node.host, node.port), timeout=20) as client:
        with suppress(OSError):  # it may have had enough before all is sent
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
        came = b""
        while True:
            try:
                part = client.recv(1 << 16)
            except ConnectionError:
                return came
            if not part:
                return came
            came += part


def sent(node: Node, line: str, *headers: str, body: bytes = b"") -> bytes:
    """The answer to one request."""
    head = "\r\n".join((line, "Host: node", *headers, f"Content-Length: {len(body)}", "Connection: close", "", ""))
    return exchanged(node, head.encode("latin-1") + body)


def status(answer: bytes) -> int:
    """Of the first answer; 0: there is none."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.") else 0


def told_nothing(answer: bytes) -> bool:
    """Whether nothing stands there that a client without a key must not have."""
    return not any(word in answer for word in (b"node_id", b'"object":"list"', b"# HELP", b"text/event-stream"))


@pytest.mark.parametrize(
    "path",
    [
        *("//v1/status", "/v1//status", "/v1/./status", "/v1/status/", "/V1/STATUS", "/v1/status?x=/health"),
        *("/v1/status;/health", "/health;/v1/status", "/health/../v1/status", "/login/../v1/status", "/v1/status%00"),
        *("/logout/..;/v1/status", "/v1/mesh/greeting/../../status", "/health%2f..%2fv1/status", "/health#/v1/status"),
        *("/static/../v1/status", "/static/%2e%2e/v1/status", "/static/..%2fv1/status", "/static\\..\\v1\\status"),
        *("http://node/v1/status", "http://node/static/../v1/status", "http://evil/health/../v1/status", "*", "//x/"),
        *("/v1/model%73", "/%76%31/status", "/metrics?x", "/v1/activity/stream", "/v1/mesh/stream", "/v1/capacity"),
    ],
)
@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_no_spelling_of_a_path_leads_around_the_door(keyed: Node, path: str, version: str) -> None:
    answer = sent(keyed, f"GET {path} HTTP/{version}")
    assert (status(answer) in (400, 401, 404), told_nothing(answer)) == (True, True), answer


@pytest.mark.parametrize("method", ["HEAD", "OPTIONS", "TRACE", "CONNECT", "PUT", "PROPFIND", "get", "FOO"])
def test_no_method_does(keyed: Node, method: str) -> None:
    answer = sent(keyed, f"{method} /v1/status HTTP/1.1")
    assert (status(answer), told_nothing(answer)) == (401, True)


@pytest.mark.parametrize(
    "headers",
    [
        ["X-Viiwork-Forwarded: beta", "X-Viiwork-Node: beta"],
        ["X-Viiwork-Auth: v2=AAAA", "X-Viiwork-Node: beta", "X-Viiwork-Ts: 1", "X-Viiwork-Nonce: AAAAAAAAAAAAAAAA"],
        [OPERATOR],
        [OPERATOR + "x", OPERATOR + "y"],
        ["X-Viiwork-Key: alice"],
        ["X-Viiwork-To: x", "X-Viiwork-Session: 00", "X-Forwarded-For: 127.0.0.1", "Forwarded: for=127.0.0.1"],
        ["Authorization: ", BEARER],
        ["Authorization: Bearer wrong", BEARER],
        [BEARER + ", x"],
        [BEARER.replace(" vwk", "\tvwk")],
        [f"Authorization : {TOKEN}"],
        ["X: y", f" {BEARER}"],
        ["Authorization: Bearer \xff\xfe\xc3\x28"],
        ["Authorization: Bearer \x00"],
        ["Authorization: Bearer " + "a" * 60_000],
        ["Authorization: Bearer " + "a" * 2_000_000],
        [f"x-api-key: {hash_text(digest_of(TOKEN))}"],
        [f"Cookie: viiwork-keyed={TOKEN}; viiwork-keyed={hash_text(digest_of(TOKEN))}"],
        ["Upgrade: websocket", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ=="],
    ],
)
@pytest.mark.parametrize("line", ["GET /v1/status HTTP/1.1", f"POST {CHAT} HTTP/1.1"])
def test_no_header_but_a_key_lets_in(keyed: Node, headers: list[str], line: str) -> None:
    body = chat("m", streamed(b"data: [DONE]\n\n"), stream=True) if line.startswith("POST") else b""
    answer = sent(keyed, line, *headers, "Content-Type: application/json", body=body)
    assert (status(answer) in (0, 400, 401, 431), told_nothing(answer)) == (True, True), answer[:300]


@pytest.mark.parametrize(
    "framing",
    [
        "Content-Length: 0\r\nContent-Length: 40",
        "Transfer-Encoding: xchunked\r\nContent-Length: 4",
        "Content-Length: 0\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        "Content-Length: +0",
        "Content-Length: 0x0",
    ],
)
def test_a_request_inside_another_is_judged_for_itself(keyed: Node, framing: str) -> None:
    inner = "GET /v1/status HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"
    outer = f"POST {CHAT} HTTP/1.1\r\nHost: node\r\n{BEARER}\r\nContent-Type: application/json\r\n{framing}\r\n\r\n"
    for begin in ("", "0\r\n\r\n"):
        answer = exchanged(keyed, (outer + begin + inner).encode())
        assert told_nothing(answer), answer


def test_the_key_of_one_request_does_not_count_for_the_next_on_its_connection(keyed: Node) -> None:
    with_key = f"HEAD /v1/status HTTP/1.1\r\nHost: node\r\n{BEARER}\r\n\r\n"
    without = "GET /v1/status HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n"
    answer = exchanged(keyed, (with_key + without).encode())
    assert answer.startswith(b"HTTP/1.1 200")
    assert answer.count(b"HTTP/1.1 401") == 1
    assert told_nothing(answer)


def test_no_key_stands_in_logs_files_arguments_or_environments(keyed: Node) -> None:
    assert status(sent(keyed, "GET /v1/status HTTP/1.1", BEARER)) == 200
    sent(keyed, f"GET /login?key={TOKEN}x HTTP/1.1")
    form = "Content-Type: application/x-www-form-urlencoded"
    assert status(sent(keyed, "POST /login HTTP/1.1", form, body=b"key=" + TOKEN.encode())) == 303
    sent(keyed, f"POST {CHAT} HTTP/1.1", BEARER, "Content-Type: application/json", body=b"{")
    assert TOKEN not in keyed.log()
    node = psutil.Process(keyed.process.pid)
    for process in (node, *node.children(recursive=True)):
        assert TOKEN not in f"{process.cmdline()} {process.environ()}"
    for file in (path for path in Path(keyed.folder).rglob("*") if path.is_file()):
        assert TOKEN.encode() not in file.read_bytes(), file
