"""Models taken down and started again while the node runs: over HTTP, and by the command."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from commands import command
from http_node import SECRET, Answer, Node, ask, chat, connected, model, soon, started, streamed, until

from viiwork_core.clock import SystemClock
from viiwork_core.security.secret import MeshSecret
from viiwork_core.security.signing import Signer

DOWN, UP = "/v1/models/down", "/v1/models/up"
JSON = ("Content-Type", "application/json")
LOCAL = ("Host", "127.0.0.1")
PIECE = b'data: {"choices":[]}\n\n'


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    config = {
        "health": {"interval": "0.3s", "respawn_grace": "20s"},
        "routing": {"queue_timeout": "10s"},
        "models": [model("a"), model("b")],
    }
    with started("parks", tmp_path_factory.mktemp("node") / "node", config) as node:
        yield node


@pytest.fixture
def node(running: Node) -> Node:
    """The node with all its models up."""
    post(running, UP)
    until(lambda: statuses(running, "a") | statuses(running, "b") == {"healthy"}, "all is up")
    return running


async def write(
    node: Node, path: str, body: bytes = b"", headers: Sequence[tuple[str, str]] = (LOCAL, JSON)
) -> tuple[int, Any]:
    """The status and the JSON of an answer to an operator's write, with exactly these headers."""
    async with asyncio.timeout(30), connected(node) as client:
        lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
        await client.send(("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])).encode() + body)
        answer = await client.read(await client.answer())
    return answer.status, json.loads(answer.body)


def post(node: Node, path: str, body: object = None, headers: Sequence[tuple[str, str]] = (LOCAL, JSON)) -> Any:
    status, answer = asyncio.run(write(node, path, b"" if body is None else json.dumps(body).encode(), headers))
    assert status == 200, answer
    return answer


def statuses(node: Node, name: str) -> set[str]:
    return {backend["status"] for backend in node.model(name)["backends"]}


def pid(node: Node, name: str) -> int:
    return int(node.model(name)["backends"][0]["pid"])


def test_down_parks_and_up_starts_again(node: Node) -> None:
    process, other = pid(node, "a"), pid(node, "b")
    assert post(node, DOWN, {"models": ["a"]}) == {
        "node": "parks",
        "models": [{"name": "a", "parked": True, "changed": True}],
    }
    until(lambda: statuses(node, "a") == {"parked"}, "a is parked")
    assert not psutil.pid_exists(process)
    assert pid(node, "b") == other
    assert (node.model("a")["parked"], "parked" in node.model("b")) == (True, False)
    assert [one["id"] for one in node.get("/v1/models")["data"]] == ["b"]
    assert [one["name"] for one in node.get("/v1/capacity")["models"]] == ["b"]
    assert node.get("/health")["backends_total"] == 1
    # Again is no news.
    assert post(node, DOWN, {"models": ["a", "a"]})["models"] == [{"name": "a", "parked": True, "changed": False}]

    assert post(node, UP, {"models": ["a"]})["models"] == [{"name": "a", "parked": False, "changed": True}]
    until(lambda: statuses(node, "a") == {"healthy"}, "a is back")
    assert pid(node, "b") == other
    answer = asyncio.run(ask(node, chat("a")))
    assert answer.status == 200


def test_all_models_parked_is_a_healthy_node(node: Node) -> None:
    answer = post(node, DOWN, headers=[LOCAL])
    assert [(one["name"], one["parked"], one["changed"]) for one in answer["models"]] == [
        ("a", True, True),
        ("b", True, True),
    ]
    until(lambda: statuses(node, "a") | statuses(node, "b") == {"parked"}, "both are parked")
    assert node.get("/health")["status"] == "ok"
    post(node, UP, {})
    until(lambda: statuses(node, "a") | statuses(node, "b") == {"healthy"}, "both are back")


def test_a_running_request_may_finish_and_a_waiting_one_is_told(node: Node) -> None:
    steps = streamed(PIECE, PIECE)
    steps.insert(2, ["gate", "go"])

    async def scene() -> tuple[Answer, Answer, Answer]:
        engine = await asyncio.to_thread(node.engine, "a")
        async with asyncio.timeout(30), connected(node) as one, connected(node) as two, connected(node) as three:
            for client in (one, two):
                await client.ask(chat("a", steps))
            running = await one.answer()
            await one.read(running, pieces=1)
            await two.read(await two.answer(), pieces=1)
            await three.ask(chat("a"))
            await soon(lambda: node.model("a")["queued"] == 1, "the third waits")
            await write(node, DOWN, b'{"models":["a"]}')
            told = await three.read(await three.answer())
            await soon(lambda: statuses(node, "a") == {"draining"}, "a drains")
            refused = await ask(node, chat("a"))
            engine.open("go")
            return await one.read(running), told, refused

    finished, told, refused = asyncio.run(scene())
    assert (finished.broken, finished.body) == (False, PIECE + PIECE)
    for answer in (told, refused):
        assert (answer.status, answer.headers["retry-after"]) == (503, "5")
        assert answer.error["message"].startswith('model "a" is parked on parks')
    until(lambda: statuses(node, "a") == {"parked"}, "a is parked")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"model": ["a"]}', "unknown field `model`"),
        (b'{"models": ["a"], "force": true}', "unknown field `force`"),
        (b'{"models": ["scripted", "nobody"]}', "not served by this node: nobody; its models: scripted, "),
        (b'{"models": []}', "models: is empty"),
        (b'{"models": null}', "$.models"),
        (b'{"models": "a"}', "$.models"),
        (b"[]", "Expected `object`"),
        (b"nonsense", "the body is not as expected"),
        (b'{"models": ["\xff"]}', "the body is not as expected"),
    ],
)
def test_a_wrong_body_changes_nothing(shared_node: Node, body: bytes, told: str) -> None:
    status, answer = asyncio.run(write(shared_node, DOWN, body))
    assert (status, answer["error"]["type"]) == (400, "invalid_request")
    assert told in answer["error"]["message"]
    assert not any("parked" in one for one in shared_node.get("/v1/status")["models"])


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([LOCAL, ("Content-Type", "text/plain")], 415),
        ([LOCAL, ("Content-Type", "application/x-www-form-urlencoded")], 415),
        ([LOCAL], 415),
        ([LOCAL, JSON, ("Origin", "http://127.0.0.1")], 403),
        ([LOCAL, JSON, ("Origin", "https://elsewhere.example")], 403),
        ([("Host", "rebound.example"), JSON], 403),
        ([("Host", "127.0.0.1.example"), JSON], 403),
        ([("Host", ""), JSON], 403),
    ],
)
def test_only_this_machine_and_no_page_may(shared_node: Node, headers: list[tuple[str, str]], expected: int) -> None:
    status, answer = asyncio.run(write(shared_node, DOWN, b"{}", headers))
    assert status == expected, answer
    assert not any("parked" in one for one in shared_node.get("/v1/status")["models"])


def test_other_methods_and_large_bodies_are_refused(shared_node: Node) -> None:
    answer = asyncio.run(ask(shared_node, b"", path=DOWN, method="GET"))
    assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")
    status, _ = asyncio.run(write(shared_node, DOWN, b" " * (64 * 1024 + 1)))
    assert status == 413


def test_a_secured_mesh_wants_a_signature(tmp_path: Path) -> None:
    config = {
        "mesh": {"network": "seeds", "seeds": ["127.0.0.1:9"], "advertise": "127.0.0.1", "bind_port": _free_port()},
        "models": [model("a")],
    }
    key = MeshSecret.from_bytes(bytes(range(32))).signature
    with started("secured", tmp_path / "node", config) as node:
        body = b'{"models":["a"]}'
        status, answer = asyncio.run(write(node, DOWN, body))
        assert (status, answer["error"]["code"]) == (401, "unproven")
        signed = Signer(key, node="viiwork-cli@here", clock=SystemClock()).sign("POST", DOWN, [], body)
        assert asyncio.run(write(node, DOWN, b"{}", [LOCAL, JSON, *signed]))[0] == 401, "another body was signed"
        assert asyncio.run(write(node, DOWN, body, [LOCAL, JSON, *signed]))[0] == 200
        until(lambda: statuses(node, "a") == {"parked"}, "a is parked")

        refused = command(node, "up", "a")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert refused.stderr.startswith("missing: X-Viiwork-Ts")
        done = command(node, "up", "a", VIIWORK_MESH_SECRET=SECRET)
        assert (done.returncode, done.stdout, done.stderr) == (0, "a: up\n", "")
        until(lambda: statuses(node, "a") == {"healthy"}, "a is back")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_command(node: Node) -> None:
    done = command(node, "down", "b")
    assert (done.returncode, done.stdout, done.stderr) == (0, "b: down\n", "")
    done = command(node, "down")
    assert (done.returncode, done.stdout) == (0, "a: down\nb: already down\n")
    done = command(node, "up", "b", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {
        "node": "parks",
        "models": [{"name": "b", "parked": False, "changed": True}],
    }
    wrong = command(node, "up", "nobody")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr == "not served by this node: nobody; its models: a, b\n"
    assert command(node, "up", "--nonsense").returncode == 2
    until(lambda: statuses(node, "b") == {"healthy"}, "b is back")


def test_the_command_without_a_node(tmp_path: Path) -> None:
    node = Node("none", tmp_path, subprocess.Popen([sys.executable, "-c", ""]))
    node.process.wait()
    (tmp_path / "viiwork.yaml").write_text(json.dumps({"node": {"state_dir": str(tmp_path / "state")}}))
    done = command(node, "down")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"no node runs with the state folder {tmp_path / 'state'}\nremedy: ")
