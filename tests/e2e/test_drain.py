"""A node is drained while it serves: nothing is cut, its sessions are warm elsewhere, and it comes back."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hosts import Hosts
from mesh import FIRST, SECOND, configuration, new_secret, tiny
from nodes import CHAT, SECRET, Node, _Connection, chat_body, prose, started, until, user

WARM = 0.9
LONG = 3000


@dataclass(frozen=True)
class Pair:
    """Two nodes, the second of which came when the first had served sessions already."""

    first: Node
    second: Node
    talk: list[dict[str, str]]
    """A session, "kept", whose only turn ran on the first when it was alone: its cache is nowhere else."""

    unnamed: list[dict[str, str]]
    """The same of a conversation that the client has no name for."""


@pytest.fixture
def joined(pair: Hosts, gguf: Path, llama_server: None, tmp_path: Path) -> Iterator[Pair]:
    secret, port = new_secret(), pair.first.free_port()
    one = configuration(FIRST, pair.first, tmp_path / FIRST, seeds=[], port=port)
    seeds = [f"{pair.first.address}:{port}"]
    two = configuration(SECOND, pair.second, tmp_path / SECOND, seeds=seeds, port=pair.second.free_port())
    # A slot for each that is spoken of here: what loses its slot has nothing that could be moved.
    one["models"] = two["models"] = [{**tiny(gguf), "parallel": 4}]
    if pair.second.namespace is None:
        two["api"]["host"] = pair.second.address
    with ExitStack() as stack:
        first = stack.enter_context(started(pair.first, FIRST, tmp_path / FIRST, one, secret))
        until(first.healthy, f"{FIRST} is healthy\n{first.log()}")
        talk = [user(prose(LONG, seed=1))]
        talk.append({"role": "assistant", "content": first.chat(talk, session="kept").text})
        unnamed = [user(prose(LONG, seed=3))]
        unnamed.append({"role": "assistant", "content": first.chat(unnamed).text})
        second = stack.enter_context(started(pair.second, SECOND, tmp_path / SECOND, two, secret))
        until(second.healthy, f"{SECOND} is healthy\n{second.log()}")

        def moved() -> bool:
            first.chat([user(prose(200, seed=2))], host=FIRST, session="ready")
            return bool(second.replicas())

        until(moved, f"{FIRST} sends a cache\n{first.log()}\n{second.log()}")
        yield Pair(first, second, talk, unnamed)
        for node in (first, second):
            node.process.terminate()


def command(node: Node, *args: str) -> subprocess.Popen[str]:
    """`viiwork` beside a node."""
    program = str(Path(sys.executable).with_name("viiwork"))
    environ = {"PATH": os.environ["PATH"], "HOME": str(node.folder), SECRET: node.secret}
    with node.host.inside():
        return subprocess.Popen(
            [program, *args, "--config", str(node.folder / "viiwork.yaml")],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def finished(process: subprocess.Popen[str], within: float = 60) -> tuple[int, Any, str]:
    """Exit status, the JSON printed, and stderr."""
    out, err = process.communicate(timeout=within)
    return process.returncode, json.loads(out), err


def draining(node: Node) -> bool:
    return node.get("/v1/drain").json["state"] != "serving"


def test_a_drained_node_cuts_nothing_and_its_sessions_are_warm_elsewhere(joined: Pair) -> None:
    first, second = joined.first, joined.second
    assert len(second.replicas()) == 1, "the session that was served before is not there"
    connection = _Connection(first.host, first.host.address, first.port)
    body = chat_body([user("go on")], max_tokens=6000, ignore_eos=True, stream=True)
    connection.request("POST", f"{CHAT}?host={FIRST}", body)
    stream = connection.getresponse()
    begun = stream.read1(1)

    drain = command(first, "drain", "--json")
    until(lambda: draining(first), "it drains")
    assert first.get("/v1/drain").json["requests"]["remaining"] == 1, "the stream still runs"
    elsewhere = first.chat([user("new work")])
    assert elsewhere.headers["x-viiwork-node"] == SECOND
    assert first.get("/v1/capacity").json["draining"] is True
    (own,) = first.get("/v1/capacity").json["models"]
    assert (own["healthy_backends"], own["slots"]) == (0, own["busy"])

    whole = begun + stream.read()
    connection.close()
    assert whole.endswith(b"data: [DONE]\n\n")
    assert whole.count(b'"content"') > 5000

    code, told, progress = finished(drain)
    assert (code, told["state"], told["requests"]["ended"]) == (0, "drained", 1), told
    assert told["requests"]["remaining"] == told["sessions"]["remaining"] == 0
    assert told["sessions"]["moved"] >= 2
    assert f"{FIRST} drains: 1 requests run" in progress

    # The client comes back, and has another address now.
    joined.talk.append(user("And what came after that?"))
    next_turn = second.chat(joined.talk, session="kept")
    assert next_turn.headers["x-viiwork-node"] == SECOND
    assert next_turn.warmth >= WARM
    joined.unnamed.append(user("And what came after that?"))
    assert second.chat(joined.unnamed).warmth >= WARM

    # At the last host there is nowhere else to go.
    assert finished(command(second, "drain", "--json"))[0] == 1, "its sessions have nowhere to go"
    refused = until(lambda: (one := first.chat([user("hello")])).status == 503 and one, "the first knows")
    assert refused.headers["retry-after"] == "5"
    assert "which drains" in refused.error["message"]

    code, told, _ = finished(command(first, "undrain", "--json"))
    assert (code, told) == (0, {"node": FIRST, "state": "serving"})
    back = until(lambda: (one := second.chat([user("hello")])).status == 200 and one, "the second knows")
    assert back.headers["x-viiwork-node"] == FIRST
