"""Aliases on one node: in requests and lists, over HTTP, by the command, and over a restart."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from commands import command
from http_node import Answer, Node, ask, chat, connected, model, script, started, until

JSON = ("Content-Type", "application/json")
LOCAL = ("Host", "127.0.0.1")
PATH = "/v1/aliases"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    config = {
        "health": {"interval": "0.3s"},
        "routing": {"queue_timeout": "1s"},
        "models": [model("big"), model("small"), model("extra")],
    }
    with started("box", tmp_path_factory.mktemp("node") / "node", config) as node:
        yield node


@pytest.fixture
def node(running: Node) -> Node:
    """The node without aliases."""
    for one in running.get(PATH)["aliases"]:
        assert write(running, "DELETE", one["name"])[0] == 200
    return running


def write(
    node: Node, method: str, rest: str, body: object = None, headers: Sequence[tuple[str, str]] = (LOCAL, JSON)
) -> tuple[int, Any]:
    """The status and the JSON of an answer to a write, with exactly these headers."""
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()

    async def scene() -> tuple[int, Any]:
        async with asyncio.timeout(30), connected(node) as client:
            lines = [f"{method} {PATH}/{rest} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
            await client.send(("\r\n".join([*lines, f"Content-Length: {len(raw)}", "", ""])).encode() + raw)
            answer = await client.read(await client.answer())
        return answer.status, json.loads(answer.body)

    return asyncio.run(scene())


def put(node: Node, name: str, target: str, *fallbacks: str, force: bool = False) -> Any:
    status, answer = write(node, "PUT", name, {"target": target, "fallbacks": fallbacks, "force": force})
    assert status == 200, answer
    return answer


def refused(node: Node, name: str, body: object, method: str = "PUT") -> tuple[int, str, str]:
    status, answer = write(node, method, name, body)
    return status, answer["error"]["code"], answer["error"]["message"]


def info(node: Node, name: str) -> Any:
    return node.get(f"{PATH}/{name}")


def asked(node: Node, name: str, **more: Any) -> Answer:
    return asyncio.run(ask(node, chat(name, **more)))


def seen(node: Node, name: str) -> Any:
    """The body of the newest request that the model's engine got."""
    return json.loads(base64.b64decode(node.engine(name).seen()[-1]["body"]))


# In requests


def test_a_request_for_an_alias_goes_to_its_target(node: Node) -> None:
    put(node, "coder", "big")
    answer = asked(node, "coder", user="somebody")
    assert answer.status == 200
    assert answer.headers["x-viiwork-model"] == "big"
    assert answer.headers["x-viiwork-alias"] == "coder"
    assert answer.headers["x-viiwork-backend"] == "big/0"
    sent = seen(node, "big")
    assert (sent["model"], sent["user"]) == ("big", "somebody")
    put(node, "coder", "small")
    assert asked(node, "coder").headers["x-viiwork-model"] == "small"


def test_a_request_for_a_model_says_nothing_of_aliases(node: Node) -> None:
    put(node, "coder", "big")
    answer = asked(node, "big")
    assert answer.headers["x-viiwork-model"] == "big"
    assert "x-viiwork-alias" not in answer.headers


def test_a_client_that_claims_an_alias_is_not_believed(node: Node) -> None:
    answer = asyncio.run(ask(node, chat("big"), headers=[("X-Viiwork-Alias", "made-up")]))
    assert "x-viiwork-alias" not in answer.headers


def test_a_request_for_nothing_is_told_so(node: Node) -> None:
    put(node, "later", "not-yet", "nor-this", force=True)
    answer = asked(node, "later")
    assert (answer.status, answer.headers["retry-after"]) == (503, "5")
    assert answer.error["type"] == "unavailable"
    assert "not-yet, nor-this" in answer.error["message"]
    assert (info(node, "later")["state"], info(node, "later")["resolved"]) == ("unavailable", None)
    write(node, "DELETE", "later")
    assert asked(node, "later").status == 404


def test_a_full_target_is_waited_for(node: Node) -> None:
    put(node, "coder", "big", "small")

    async def scene() -> Answer:
        async with asyncio.timeout(30), connected(node) as one, connected(node) as two:
            for client in (one, two):
                await client.ask(chat("big", script(("stream",), ("chunk", b"data: {}\n\n"), ("hold",)), stream=True))
                await client.read(await client.answer(), pieces=1)
            return await ask(node, chat("coder"))

    answer = asyncio.run(scene())
    assert answer.status == 429
    assert answer.error["message"] == "no free slot for big within 1s"
    until(lambda: node.idle("big"), "both are over")


def test_a_fallback_serves_while_the_target_does_not(node: Node) -> None:
    put(node, "coder", "extra", "not-there", "small")
    assert asked(node, "coder").headers["x-viiwork-model"] == "extra"
    _park(node, "down")
    try:
        until(lambda: info(node, "coder")["state"] == "fallback", "the fallback stands in")
        answer = asked(node, "coder")
        assert (answer.headers["x-viiwork-model"], answer.headers["x-viiwork-alias"]) == ("small", "coder")
        assert seen(node, "small")["model"] == "small"
    finally:
        _park(node, "up")
    until(lambda: info(node, "coder")["state"] == "ok", "the target is back")
    assert asked(node, "coder").headers["x-viiwork-model"] == "extra"


def _park(node: Node, how: str) -> None:
    headers = [LOCAL, JSON]

    async def scene() -> None:
        async with connected(node) as client:
            body = b'{"models":["extra"]}'
            lines = [f"POST /v1/models/{how} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
            await client.send(("\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""])).encode() + body)
            assert (await client.read(await client.answer())).status == 200

    asyncio.run(scene())


# In lists


def test_every_list_has_the_aliases(node: Node) -> None:
    put(node, "coder", "big", "small")
    listed = {one["id"]: one for one in node.get("/v1/models")["data"]}
    assert list(listed) == ["big", "coder", "extra", "small"]
    assert {**listed["big"], **listed["coder"]} == {
        **listed["big"],
        "id": "coder",
        "owned_by": "alias",
        "target": "big",
    }
    assert [one["model_name"] for one in node.get("/v1/model/info")["data"]] == list(listed)
    opencode = node.get("/api.json")["viiwork"]["models"]
    assert list(opencode) == list(listed)
    assert opencode["coder"]["name"] == "coder -> big"
    (event,) = [one for one in node.get("/v1/activity")["events"] if one["type"] == "alias"][-1:]
    assert event["message"] == "coder → big, else small (by box)"


# Over HTTP


def test_what_a_write_answers_and_a_read_tells(node: Node) -> None:
    answer = put(node, "fresh", "big", "small")
    assert (answer["name"], answer["changed"]) == ("fresh", True)
    assert answer["entry"].items() >= {"target": "big", "fallbacks": ["small"], "by": "box"}.items()
    version = answer["entry"]["ver"]
    assert put(node, "fresh", "big", "small") == {**answer, "changed": False}
    found = info(node, "fresh")
    assert found["updated_at"] == answer["entry"]["ts"]
    assert (
        found.items()
        >= {
            "name": "fresh",
            "target": "big",
            "fallbacks": ["small"],
            "version": version,
            "updated_by": "box",
            "resolved": "big",
            "state": "ok",
            "members": {"alive": 1, "have": 1, "missing": []},
        }.items()
    )
    put(node, "fresh", "small")
    assert info(node, "fresh")["history"][0]["target"] == "big"
    status, answer = write(node, "POST", "fresh/revert")
    assert (status, answer["entry"]["target"], answer["entry"]["ver"]) == (200, "big", version + 2)
    status, answer = write(node, "DELETE", "fresh")
    assert (status, answer["entry"]["deleted"]) == (200, True)
    assert info(node, "fresh")["state"] == "deleted"
    assert node.get(PATH)["aliases"] == []
    assert write(node, "POST", "fresh/revert")[0] == 200
    assert asked(node, "fresh").headers["x-viiwork-model"] == "big"


def test_what_is_refused(node: Node) -> None:
    put(node, "one", "big")
    for name, body, told in (
        ("big", {"target": "small"}, "big is the name of a model"),
        ("two", {"target": "one"}, "one is an alias"),
        ("two", {"target": "big", "fallbacks": ["one"]}, "one is an alias"),
        ("two", {"target": "big", "fallbacks": ["small", "small"]}, "small is there twice"),
        ("two", {"target": "big", "fallbacks": ["big"]}, "big is there twice"),
        ("two", {"target": "two", "force": True}, "alias two cannot stand for itself"),
        ("two", {"target": "unheard-of"}, "no node serves unheard-of now"),
    ):
        status, code, message = refused(node, name, body)
        assert (status, code) == (409, "alias_refused")
        assert message.startswith(told), message
    for name, method in (("nobody", "DELETE"), ("nobody/revert", "POST")):
        assert refused(node, name, None, method)[:2] == (404, "not_found")
    assert [one["name"] for one in node.get(PATH)["aliases"]] == ["one"]
    put(node, "two", "unheard-of", force=True)


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("a", b"nonsense"),
        ("a", b""),
        ("a", {"targets": "big"}),
        ("a", {"target": "big", "fallback": []}),
        ("a", {"target": ""}),
        ("a", {"target": "with blank"}),
        ("a", {"target": "line\nbreak"}),
        ("a", {"target": "big", "fallbacks": [f"m{number}" for number in range(9)]}),
        ("a", {"target": "x" * 257, "force": True}),
        ("a", {"target": "big", "fallbacks": [f"{number}" + "ö" * 254 for number in range(8)]}),
        ("a" * 65, {"target": "big"}),
        ("a%20b", {"target": "big"}),
        ("...", {"target": "big"}),
        ("%C3%A9", {"target": "big"}),
    ],
)
def test_what_is_no_alias(node: Node, name: str, body: object) -> None:
    assert refused(node, name, body)[:2] == (400, "invalid_request")
    assert node.get(PATH)["aliases"] == []


def test_paths_and_methods(node: Node) -> None:
    for path in ("/a/b", "/a/revert/x", "/", "/a/", "//revert"):
        assert asyncio.run(ask(node, b"", path=PATH + path, method="GET")).status == 404, path
    for method, path in (("POST", ""), ("PUT", ""), ("POST", "/a"), ("GET", "/a/revert")):
        answer = asyncio.run(ask(node, b"", path=PATH + path, method=method))
        assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")
    assert write(node, "PUT", "a", b" " * (64 * 1024 + 1))[0] == 413


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([LOCAL], 415),
        ([LOCAL, ("Content-Type", "text/plain")], 415),
        ([LOCAL, JSON, ("Origin", "http://127.0.0.1")], 403),
        ([("Host", "rebound.example"), JSON], 403),
    ],
)
def test_no_page_may_write(node: Node, headers: list[tuple[str, str]], expected: int) -> None:
    assert write(node, "PUT", "a", {"target": "big"}, headers)[0] == expected
    assert node.get(PATH)["aliases"] == []


# By the command


def alias(node: Node, *args: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    return command(node, "alias", *args, stdin=stdin)


def test_the_command(node: Node, tmp_path: Path) -> None:
    done = alias(node, "set", "said", "big", "--fallback", "small", "--fallback", "extra")
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "said -> big, else small, else extra\n1 of 1 members have it\n",
        "",
    )
    assert alias(node, "set", "said", "small", "--wait").stdout.startswith("said -> small\n")
    header, row = alias(node, "ls").stdout.splitlines()
    assert header.split() == ["ALIAS", "TARGET", "FALLBACKS", "STATE", "SERVED", "AS", "BY"]
    assert row.split() == ["said", "small", "-", "ok", "small", "box"]
    assert json.loads(alias(node, "ls", "--json").stdout)["aliases"][0]["target"] == "small"
    assert alias(node, "revert", "said").stdout.startswith("said -> big, else small, else extra\n")
    newest, before, *_ = alias(node, "history", "said").stdout.splitlines()
    assert newest.endswith("box  big, else small, else extra")
    assert before.endswith("box  small")

    alias(node, "set", "gone", "big")
    assert alias(node, "rm", "gone").stdout.startswith("gone -> nothing\n")
    exported = alias(node, "export").stdout
    assert json.loads(exported)["aliases"].keys() >= {"said", "gone"}
    assert alias(node, "export", str(tmp_path / "all.json")).returncode == 0
    alias(node, "rm", "said")
    done = alias(node, "import", str(tmp_path / "all.json"))
    assert (done.returncode, done.stdout) == (0, "said: set\n")
    assert alias(node, "import", stdin=exported).stdout == "said: as it was\n"
    assert info(node, "said")["fallbacks"] == ["small", "extra"]


def test_the_command_when_it_is_refused(node: Node) -> None:
    wrong = alias(node, "set", "big", "small")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert wrong.stderr == "big is the name of a model; choose another name for the alias\n"
    for name in ("a/b", "..", "a b", "?", ""):
        wrong = alias(node, "set", name, "big")
        assert wrong.returncode == 2
        assert "is no name for an alias\nremedy: " in wrong.stderr
    wrong = alias(
        node, "import", stdin='{"v":1,"aliases":{"big":{"target":"small"},"ok":{"target":"any","fallbacks":null}}}'
    )
    assert (wrong.returncode, wrong.stdout.splitlines()[1]) == (1, "ok: set")
    assert alias(node, "import", stdin="[]").stderr.startswith("the file is no export of aliases")
    assert alias(node, "set", "x").returncode == 2
    assert alias(node, "set", "x", "big", "--timeout", "5").returncode == 2
    assert alias(node, "ls", "--node", "nonsense").stderr.startswith("http://nonsense is no address of a node")
    here = alias(node, "ls", "--node", f"127.0.0.1:{node.port}")
    assert here.stdout.splitlines()[1].split()[0] == "ok"


def test_the_command_without_a_node(tmp_path: Path) -> None:
    node = Node("none", tmp_path, subprocess.Popen([sys.executable, "-c", ""]))
    node.process.wait()
    (tmp_path / "viiwork.yaml").write_text(json.dumps({"node": {"state_dir": str(tmp_path / "state")}}))
    done = alias(node, "ls")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"no node runs with the state folder {tmp_path / 'state'}\nremedy: ")


# Over a restart


def test_a_restart_keeps_them_and_a_model_comes_before(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    with started("one", folder, {"models": [model("big")]}) as node:
        put(node, "coder", "big")
        put(node, "gone", "big")
        write(node, "DELETE", "gone")
    with started("one", folder, {"models": [model("big"), model("coder")]}) as node:
        found = info(node, "coder")
        assert (found["state"], found["resolved"], found["target"]) == ("shadowed", "coder", "big")
        answer = asked(node, "coder")
        assert answer.headers["x-viiwork-model"] == "coder"
        assert "x-viiwork-alias" not in answer.headers
        assert {one["id"]: one["owned_by"] for one in node.get("/v1/models")["data"]} == {
            "big": "local",
            "coder": "local",
        }
        assert info(node, "gone")["state"] == "deleted"


@pytest.mark.parametrize("text", ["", "{", '{"v": 2, "aliases": {}}', '{"v": 1, "aliases": {"a": {"ver": 1}}}'])
def test_a_file_that_cannot_be_read_stops_the_start(tmp_path: Path, text: str) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "aliases.json").write_text(text)
    config = {"node": {"name": "one", "state_dir": str(state)}, "api": {"port": 0}, "mesh": {"network": "none"}}
    (tmp_path / "viiwork.yaml").write_text(json.dumps(config))
    program = str(Path(sys.executable).with_name("viiwork"))
    done = subprocess.run(
        [program, "serve", "--config", str(tmp_path / "viiwork.yaml")],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "VIIWORK_PLUGINS": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert f"{state / 'aliases.json'}: the aliases cannot be read: " in done.stderr
    assert "\nremedy: put back a good copy, or move the file away" in done.stderr
    assert (state / "aliases.json").read_text() == text


def test_what_was_answered_survives_a_kill(tmp_path: Path) -> None:
    folder = tmp_path / "node"
    with started("one", folder, {"models": [model("big")]}) as node:
        for number in range(20):
            put(node, f"n{number}", "big")
        node.process.kill()
        node.process.wait()
    with started("one", folder, {"models": [model("big")]}) as node:
        assert {one["name"] for one in node.get(PATH)["aliases"]} == {f"n{number}" for number in range(20)}
