"""A node attached to servers that it did not start: what they are sent, and what becomes of their answers."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from http_node import CHAT, SECRET, Answer, Node, ask, chat, connected, model, plugin_path, soon, started, until

KEY_VARIABLE, KEY = "VIIWORK_MESH_SECRET", SECRET
"""The one variable that every node of these tests has; any would do."""

REPLY = {"object": "chat.completion", "model": "a-name-of-its-own", "choices": [{"message": {"content": "fine"}}]}
LISTED = {"object": "list", "data": [{"id": "theirs", "max_model_len": 12345}]}


class Server(ThreadingHTTPServer):
    """Serves under `base`, answers as it is told, and keeps what it was asked."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, base: str = "", port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.base = base
        self.posts: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.held = 0
        self.answer: tuple[int, dict[str, str], bytes] = (200, {}, json.dumps(REPLY).encode())

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}{self.base}"


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        known = self.path == f"{self.server.base}/v1/models"
        self._send(200 if known else 404, {}, json.dumps(LISTED).encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.posts.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
        if body.get("user") == "hold":
            self.server.held += 1
            self.close_connection = self.connection.recv(1) == b""
            self.server.held -= 1
        else:
            self._send(*self.server.answer)

    def _send(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
        pass


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.serve_forever, args=[0.05])
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[Server, Server]]:
    with serving(Server("/gpu1")) as first, serving(Server()) as second:
        yield first, second


@pytest.fixture(scope="module")
def attached_node(servers: tuple[Server, Server], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    first, second = servers
    by_name = second.url.replace("127.0.0.1", "localhost")
    keyed = {"urls": [f"{first.url}/v1", second.url], "api_key_env": KEY_VARIABLE, "model": "theirs"}
    config = {
        "routing": {"queue_timeout": "0.5s", "queue_max": 2},
        "health": {"interval": "0.2s"},
        "models": [
            model("ours", "external", external=keyed),
            model("theirs", "external", external={"urls": [by_name], "usage": "include_usage"}),
        ],
    }
    with started("one", tmp_path_factory.mktemp("attached") / "one", config) as node:
        yield node


@pytest.fixture
def node(attached_node: Node, servers: tuple[Server, Server]) -> Iterator[Node]:
    """The node and the servers, idle and answering well, before and after."""
    for server in servers:
        server.posts.clear()
        server.answer = (200, {}, json.dumps(REPLY).encode())
    yield attached_node
    until(lambda: attached_node.idle("ours") and attached_node.idle("theirs"), "all slots come free again")


def asked(node: Node, body: bytes, headers: list[tuple[str, str]] | None = None, path: str = CHAT) -> Answer:
    return asyncio.run(ask(node, body, headers=headers or [], path=path))


def test_each_server_is_a_backend_with_the_slots_that_it_was_given(node: Node) -> None:
    ours = node.model("ours")
    assert (ours["engine"], ours["slots"], len(ours["backends"])) == ("external", 4, 2)
    assert all("pid" not in backend for backend in ours["backends"])


def test_the_context_that_a_server_tells_wins_over_the_configuration(node: Node) -> None:
    def listed() -> dict[str, int]:
        return {entry["id"]: entry["max_model_len"] for entry in node.get("/v1/models")["data"]}

    until(lambda: listed() == {"ours": 12345, "theirs": 12345}, "both contexts are the server's")


def test_a_server_gets_its_own_name_for_the_model_and_the_nodes_key(node: Node, servers: tuple[Server, Server]) -> None:
    mine = [("Authorization", "Bearer of-the-client"), ("X-Api-Key", "of-the-client"), ("Cookie", "of-the-client")]
    answers = [asked(node, chat("ours", temperature=0.5), mine) for _ in range(8)]
    assert {answer.status for answer in answers} == {200}
    assert {answer.headers["x-viiwork-backend"] for answer in answers} == {"ours/0", "ours/1"}
    assert {path for path, _, _ in servers[0].posts} == {f"/gpu1{CHAT}"}
    assert {path for path, _, _ in servers[1].posts} == {CHAT}
    for _, headers, body in (*servers[0].posts, *servers[1].posts):
        assert headers["authorization"] == f"Bearer {KEY}"
        assert "of-the-client" not in str(headers)
        assert body == {**json.loads(chat("ours", temperature=0.5)), "model": "theirs"}


def test_the_answer_keeps_the_name_that_the_server_gives(node: Node) -> None:
    answer = asked(node, chat("ours"))
    assert json.loads(answer.body) == REPLY
    assert answer.headers["x-viiwork-model"] == "ours"


def test_without_a_key_and_a_name_nothing_is_changed(node: Node, servers: tuple[Server, Server]) -> None:
    assert asked(node, chat("theirs"), [("Authorization", "Bearer of-the-client")]).status == 200
    ((path, headers, body),) = servers[1].posts
    assert (path, body) == (CHAT, json.loads(chat("theirs")))
    assert "authorization" not in headers


def test_usage_is_asked_for_only_where_the_options_say_so(node: Node, servers: tuple[Server, Server]) -> None:
    assert asked(node, chat("theirs", stream=True)).status == 200
    assert servers[1].posts.pop()[2]["stream_options"] == {"include_usage": True}
    assert {asked(node, chat("ours", stream=True)).status for _ in range(4)} == {200}
    assert all("stream_options" not in body for server in servers for _, _, body in server.posts)


def test_a_servers_cookie_goes_to_nobody(node: Node, servers: tuple[Server, Server]) -> None:
    servers[1].answer = (200, {"Set-Cookie": "who=one; Path=/"}, b"{}")
    answers = [asked(node, chat("theirs")) for _ in range(2)]
    assert all("set-cookie" not in answer.headers for answer in answers)
    assert all("cookie" not in headers for _, headers, _ in servers[1].posts)


@pytest.mark.parametrize(
    ("status", "headers", "words"),
    [
        (401, {"WWW-Authenticate": "Bearer"}, "the backend answered 401: it does not know this node's key"),
        (302, {"Location": "http://127.0.0.1:1/"}, "the backend answered 302: it is somewhere else"),
        (307, {"Location": "http://127.0.0.1:1/"}, "the backend answered 307: it is somewhere else"),
    ],
)
def test_what_is_wrong_between_node_and_server_is_not_the_clients(
    node: Node, servers: tuple[Server, Server], status: int, headers: dict[str, str], words: str
) -> None:
    for server in servers:
        server.answer = (status, headers, f'{{"error": "the key {KEY} is wrong"}}'.encode())
    answer = asked(node, chat("ours"))
    assert (answer.status, answer.error["code"]) == (502, "backend_failed")
    assert words in answer.error["message"]
    assert not {"location", "www-authenticate"} & answer.headers.keys()
    assert KEY.encode() not in answer.body


def test_an_error_about_the_request_is_the_clients(node: Node, servers: tuple[Server, Server]) -> None:
    servers[1].answer = (404, {}, b'{"error": {"message": "model not found"}}')
    answer = asked(node, chat("theirs"))
    assert (answer.status, answer.body) == (404, b'{"error": {"message": "model not found"}}')


def test_a_path_that_is_not_openais_is_not_passed_on(node: Node, servers: tuple[Server, Server]) -> None:
    assert asked(node, chat("theirs"), path="/v1/embeddings").status == 200
    servers[1].posts.clear()
    assert asked(node, chat("theirs"), path="/v1/files").status == 404
    assert servers[1].posts == []


def test_what_runs_is_what_this_node_has_sent(node: Node, servers: tuple[Server, Server]) -> None:
    async def scene() -> None:
        async with connected(node) as one, connected(node) as two:
            for client in (one, two):
                await client.ask(chat("theirs", user="hold"))
            await soon(lambda: servers[1].held == 2, "both requests run")
            assert (node.model("theirs")["busy"], node.slots("theirs")) == (2, ["running", "running"])
            third = await ask(node, chat("theirs"))
            assert (third.status, third.error["code"]) == (429, "no_free_slot")
            one.leave()
            await soon(lambda: servers[1].held == 1, "the server sees that its client left")
            # Long before an engine that owes a word about it would be given up on.
            await soon(lambda: node.model("theirs")["busy"] == 1, "the slot is free again", 3)
            assert (await ask(node, chat("theirs"))).status == 200

    asyncio.run(scene())


def test_the_key_is_nowhere_to_be_seen(node: Node) -> None:
    asked(node, chat("ours"))
    told = "".join(json.dumps(node.get(path)) for path in ("/v1/status", "/v1/capacity", "/v1/models", "/health"))
    assert KEY not in told
    assert KEY not in node.log()
    assert all(KEY not in str(path.read_bytes()) for path in (node.folder / "state").rglob("*") if path.is_file())


def test_a_server_that_goes_is_left_out_until_it_comes_back(tmp_path: Path, servers: tuple[Server, Server]) -> None:
    stays = servers[1]
    with serving(Server()) as goes:
        port = goes.server_port
        urls = [goes.url, stays.url]
        config = {"health": {"interval": "0.1s"}, "models": [model("m", "external", external={"urls": urls})]}
        nodes = started("two", tmp_path / "two", config)
        node = nodes.__enter__()
    try:
        until(lambda: node.model("m")["backends"][0]["status"] == "unhealthy", "the first is away")
        assert "no server answers at" in node.model("m")["backends"][0]["reason"]
        assert {asked(node, chat("m")).headers["x-viiwork-backend"] for _ in range(3)} == {"m/1"}
        with serving(Server(port=port)):
            until(node.ready, "it is back")
            answers = {asked(node, chat("m")).headers["x-viiwork-backend"] for _ in range(40)}
            assert answers == {"m/0", "m/1"}
    finally:
        nodes.__exit__(None, None, None)


def test_a_key_that_is_not_set_stops_the_start_with_one_sentence(tmp_path: Path) -> None:
    block = {"urls": ["http://127.0.0.1:1"], "api_key_env": "NOT_SET_ANYWHERE"}
    whole = {"mesh": {"network": "none"}, "api": {"port": 0}, "node": {"state_dir": str(tmp_path / "state")}}
    config = tmp_path / "viiwork.yaml"
    config.write_text(json.dumps({**whole, "models": [model("m", "external", external=block)]}))
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "VIIWORK_PLUGINS": ""}
    environ["PYTHONPATH"] = plugin_path(tmp_path / "site")
    command: list[str | Path] = [Path(sys.executable).with_name("viiwork"), "serve", "--config", config]
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1
    said = "model m: external.api_key_env: the environment variable NOT_SET_ANYWHERE is not set"
    assert said in ended.stderr
    assert "remove api_key_env" in ended.stderr
    assert "Traceback" not in ended.stderr
