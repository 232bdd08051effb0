"""A node is drained over HTTP and by the command: who may, what is told, what is left, and how the node ends then."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from commands import command
from http_node import Answer, Node, ask, chat, connected, model, soon, started, streamed, until

from viiwork_core.security.keys import digest_of, hash_text, new_token

DRAIN = "/v1/drain"
JSON = ("Content-Type", "application/json")
LOCAL = ("Host", "127.0.0.1")
PIECE = b'data: {"choices":[]}\n\n'


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    config = {"routing": {"queue_timeout": "10s"}, "models": [model("a", parallel=1)]}
    with started("drains", tmp_path_factory.mktemp("node") / "node", config) as node:
        yield node


@pytest.fixture
def node(running: Node) -> Iterator[Node]:
    """A node that takes requests, before and after."""
    yield running
    write(running, "DELETE")
    until(lambda: running.idle("a"), "nothing runs")


def write(
    node: Node, method: str, body: bytes = b"", headers: Sequence[tuple[str, str]] = (LOCAL, JSON)
) -> tuple[int, Any]:
    return asyncio.run(written(node, method, body, headers))


async def written(
    node: Node, method: str, body: bytes = b"", headers: Sequence[tuple[str, str]] = (LOCAL, JSON)
) -> tuple[int, Any]:
    async with asyncio.timeout(30), connected(node) as client:
        lines = [f"{method} {DRAIN} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
        await client.send(("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])).encode() + body)
        answer = await client.read(await client.answer(method))
    return answer.status, json.loads(answer.body)


def gated(gate: str) -> list[list[Any]]:
    """A stream that goes on when the engine is told."""
    steps = streamed(PIECE, PIECE)
    steps.insert(2, ["gate", gate])
    return steps


def test_an_idle_node_is_drained_at_once_and_refuses_with_the_reason(node: Node) -> None:
    assert node.get(DRAIN) == {"node": "drains", "state": "serving"}
    status, told = write(node, "POST", b"{}")
    assert (status, told["timeout_s"], told["state"] in {"draining", "drained"}) == (200, 600.0, True)
    until(lambda: node.get(DRAIN)["state"] == "drained", "it is drained")
    assert node.get("/v1/status")["draining"] is True
    assert node.get("/v1/capacity")["draining"] is True
    health = node.get("/health")
    assert (health["status"], health["draining"]) == ("ok", True)
    refused = asyncio.run(ask(node, chat("a")))
    assert (refused.status, refused.headers["retry-after"]) == (503, "5")
    assert refused.error["message"].startswith('model "a" takes no new requests on drains, which drains')
    unknown = asyncio.run(ask(node, chat("nobody")))
    assert unknown.status == 404

    assert write(node, "DELETE") == (200, {"node": "drains", "state": "serving"})
    assert "draining" not in node.get("/v1/status")
    assert asyncio.run(ask(node, chat("a"))).status == 200


def test_what_runs_may_finish_and_who_waits_is_told(node: Node) -> None:
    async def scene() -> tuple[Answer, Answer, Any, Any]:
        engine = await asyncio.to_thread(node.engine, "a")
        async with asyncio.timeout(30), connected(node) as one, connected(node) as two:
            await one.ask(chat("a", gated("first")), headers=[("X-Request-Id", "runs")])
            running = await one.answer()
            await one.read(running, pieces=1)
            await two.ask(chat("a"))
            await soon(lambda: node.model("a")["queued"] == 1, "the second waits")
            _, begun = await written(node, "POST", b"{}")
            waited = await two.read(await two.answer())
            engine.open("first")
            whole = await one.read(running)
            done = await soon(lambda: (told := node.get(DRAIN))["state"] == "drained" and told, "it is drained")
            return whole, waited, begun, done

    whole, waited, begun, done = asyncio.run(scene())
    assert (whole.broken, whole.body) == (False, PIECE + PIECE)
    assert waited.status == 503
    assert {"request_id": "runs", "model": "a", "at": "a/0"} in begun["requests"]["left"]
    assert done["requests"] == {"ended": 2, "remaining": 0, "left": []}
    assert done["sessions"]["remaining"] == 0


def test_what_is_left_when_the_time_is_up_runs_on(node: Node) -> None:
    async def scene() -> tuple[subprocess.CompletedProcess[str], Answer]:
        engine = await asyncio.to_thread(node.engine, "a")
        async with asyncio.timeout(30), connected(node) as one:
            await one.ask(chat("a", gated("second")), headers=[("X-Request-Id", "long")])
            running = await one.answer()
            await one.read(running, pieces=1)
            done = await asyncio.to_thread(command, node, "drain", "--timeout", "100ms")
            engine.open("second")
            return done, await one.read(running)

    done, whole = asyncio.run(scene())
    assert done.returncode == 1
    assert "requests  0 ended, 1 left\n  long  a  a/0\n" in done.stdout
    assert done.stderr.startswith("drains drains: 1 requests run")
    assert (whole.broken, whole.body) == (False, PIECE + PIECE)
    again = command(node, "drain", "--json")
    assert (again.returncode, json.loads(again.stdout)["requests"]["remaining"]) == (0, 0)


def test_up_ends_a_drain_and_undrain_does(node: Node) -> None:
    assert command(node, "drain").returncode == 0
    done = command(node, "up")
    assert (done.returncode, done.stdout) == (0, "drains takes requests\na: already up\n")
    assert node.get(DRAIN)["state"] == "serving"
    assert command(node, "drain", "--no-wait").returncode == 0
    assert command(node, "up", "a").stdout == "a: already up\n"
    done = command(node, "undrain")
    assert (done.returncode, done.stdout) == (0, "drains takes requests\n")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b'{"timeout": 5}', "unknown field `timeout`"),
        (b'{"timeout_s": -1}', "$.timeout_s"),
        (b'{"timeout_s": 1e9}', "$.timeout_s"),
        (b'{"then": "explode"}', "$.then"),
        (b"[]", "Expected `object`"),
        (b"\xff", "the body is not as expected"),
    ],
)
def test_a_wrong_body_changes_nothing(node: Node, body: bytes, told: str) -> None:
    status, answer = write(node, "POST", body)
    assert (status, answer["error"]["type"]) == (400, "invalid_request")
    assert told in answer["error"]["message"]
    assert node.get(DRAIN)["state"] == "serving"


@pytest.mark.parametrize("method", ["POST", "DELETE"])
@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([LOCAL, JSON, ("Origin", "http://127.0.0.1")], 403),
        ([LOCAL, JSON, ("Origin", "https://elsewhere.example")], 403),
        ([("Host", "rebound.example"), JSON], 403),
        ([LOCAL, ("Content-Type", "text/plain")], 415),
    ],
)
def test_only_this_machine_and_no_page_may(
    node: Node, method: str, headers: list[tuple[str, str]], expected: int
) -> None:
    assert write(node, method, b"{}", headers)[0] == expected
    assert node.get(DRAIN)["state"] == "serving"


def test_other_methods_and_large_bodies_are_refused(node: Node) -> None:
    answer = asyncio.run(ask(node, b"", path=DRAIN, method="PUT"))
    assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")
    assert write(node, "POST", b" " * (64 * 1024 + 1))[0] == 413


def test_a_node_that_is_drained_stops(tmp_path: Path) -> None:
    with started("stops", tmp_path / "node", {"models": [model("a")]}) as node:
        done = command(node, "drain", "--then", "stop")
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("stops is drained")
        assert done.stderr.endswith("the node ends\n")
        assert node.process.wait(20) == 0
        assert node.events("stopped")


def test_a_node_that_is_drained_starts_again_in_its_process(tmp_path: Path) -> None:
    with started("again", tmp_path / "node", {"models": [model("a")]}) as node:
        before = node.get("/v1/status")["node_id"]
        done = command(node, "drain", "--then", "restart", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["then"] == "restart"
        assert done.stderr.endswith("the node starts again\n")
        assert node.process.poll() is None
        node.port = int(node.events("starting")[-1]["api"].rpartition(":")[2])
        after = node.get("/v1/status")
        assert (after["node_id"] != before, "draining" in after) == (True, False)
        until(node.ready, "its model is there again")
        assert asyncio.run(ask(node, chat("a"))).status == 200


def test_with_api_keys_it_takes_the_operator_and_no_client(tmp_path: Path) -> None:
    """A client's key drains nothing; the command shows the node's own token, also to the process that starts again."""
    token = new_token()
    key = ("Authorization", f"Bearer {token}")
    keys = [{"name": "alice", "hash": hash_text(digest_of(token))}]
    config = {"api": {"port": 0, "keys": keys}, "models": [model("a", parallel=1)]}
    with started("vault", tmp_path / "node", config, healthy=False) as node:
        for credentials in ((LOCAL, JSON), (LOCAL, JSON, key)):
            status, told = write(node, "POST", b"{}", credentials)
            assert (status, told["error"]["code"]) == (403, "forbidden")
            assert "use the viiwork command there" in told["error"]["message"]
        done = command(node, "drain", "--json")
        assert (done.returncode, json.loads(done.stdout)["state"]) == (0, "drained"), done.stderr
        assert asyncio.run(ask(node, chat("a"), headers=[key])).status == 503
        undone = command(node, "undrain")
        assert (undone.returncode, undone.stdout) == (0, "vault takes requests\n")
        done = command(node, "drain", "--then", "restart")
        assert (done.returncode, done.stderr.endswith("the node starts again\n")) == (0, True), done.stderr
        node.port = int(node.events("starting")[-1]["api"].rpartition(":")[2])
        until(lambda: asyncio.run(ask(node, chat("a"), headers=[key])).status == 200, "its model is there again")
        assert asyncio.run(ask(node, chat("a"))).status == 401
