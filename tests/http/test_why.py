"""Whoever asks why a request went where it went is told, at any node, in words or as JSON."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commands import command
from http_node import SECRET, Node, ask, chat, model, script, soon, started, until
from meshes import free_port, mesh_at

from viiwork_core.simulation.trace import read

TEXT = "a sentence that is nobody else's business"


def configuration(host: str, port: int, seeds: list[str], trace: Path, *models: dict[str, Any]) -> dict[str, Any]:
    return {
        "mesh": mesh_at(host, port, seeds),
        "routing": {"queue_timeout": "10s", "trace": str(trace)},
        "models": list(models),
    }


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Node]]:
    """`front` has "both", `back` has that and "far"."""
    folder = tmp_path_factory.mktemp("why")
    first, second = [(host, free_port(host)) for host in ("127.0.0.31", "127.0.0.32")]
    front = configuration(*first, [], folder / "front.jsonl", model("both"))
    seeds = [f"{first[0]}:{first[1]}"]
    back = configuration(*second, seeds, folder / "back.jsonl", model("far"), model("both"))
    with started("front", folder / "front", front) as one, started("back", folder / "back", back) as other:
        until(lambda: one.get("/v1/fleet/capacity?model=both")["models"][0]["slots"] == 4, "both are known")
        until(lambda: one.get("/v1/fleet/capacity?model=far")["models"], "the first knows the second's model")
        yield one, other


def served(node: Node, name: str, rid: str, query: str = "", **headers: str) -> dict[str, str]:
    """Headers of an answer."""
    body = json.dumps({"model": name, "messages": [{"role": "user", "content": TEXT}]}).encode()
    sent = [("X-Request-Id", rid), *((key.replace("_", "-"), value) for key, value in headers.items())]
    answer = asyncio.run(ask(node, body, path=f"/v1/chat/completions{query}", headers=sent))
    assert answer.status == 200, answer.body
    return answer.headers


def why(node: Node, rid: str) -> dict[str, Any]:
    found: dict[str, Any] = node.get(f"/v1/why/{rid}")
    return found


def test_every_answer_says_where_it_comes_from(nodes: tuple[Node, Node]) -> None:
    front, back = nodes
    here, there = served(front, "both", "w1", "?host=front"), served(front, "far", "w2")
    assert (here["x-viiwork-node"], here["x-viiwork-backend"]) == ("front", "both/0")
    assert (there["x-viiwork-node"], there["x-viiwork-backend"]) == ("back", "far/0")
    assert {here["x-viiwork-queued-ms"], there["x-viiwork-queued-ms"]} == {"0"}
    assert (here["x-request-id"], there["x-request-id"]) == ("w1", "w2")
    refused = asyncio.run(ask(front, chat("nowhere"), headers=[("X-Request-Id", "w3")]))
    assert refused.status == 404
    named = (refused.headers["x-viiwork-node"], refused.headers["x-viiwork-queued-ms"], refused.headers["x-request-id"])
    assert named == ("front", "0", "w3")
    assert why(front, "w3")["status"] == 404
    assert back.get("/v1/why/w1")["node"] == "front"


def test_a_choice_is_told_with_its_candidates(nodes: tuple[Node, Node]) -> None:
    front, _ = nodes
    served(front, "both", "w4", X_Session_Id="one of mine")
    found = why(front, "w4")
    (choice,) = found["choices"]
    assert {one["id"] for one in choice["candidates"]} == {"front", "back"}
    assert [one["rank"] for one in choice["candidates"]] == [1, 2]
    assert choice["chosen"] == choice["candidates"][0]["id"]
    assert choice["rule"]
    session = found["session"]
    assert (session["found"], session["continues"], len(session["hash"])) == ("header", False, 12)
    assert (found["prompt_tokens"], found["cached_tokens"], found["completion_tokens"]) == (5, 2, 1)
    assert found["first_token_ms"] >= 0
    assert TEXT not in json.dumps(found)


def test_a_member_is_asked_for_what_this_node_did_not_choose(nodes: tuple[Node, Node]) -> None:
    front, back = nodes
    served(front, "far", "w5")
    assert why(front, "w5")["peer"] == "back"
    # The second only ran it. It asks the one that chose.
    assert (why(back, "w5")["node"], why(back, "w5")["choices"][0]["chosen"]) == ("front", "back")
    own = back.get("/v1/why/w5?here=1")
    assert (own["node"], own["forwarded_here"], own["backend"]) == ("back", True, "far/0")
    unknown = asyncio.run(ask(back, b"", path="/v1/why/never", method="GET"))
    assert unknown.status == 404
    assert "X-Request-Id" in unknown.error["message"]


def test_a_preference_is_heeded_and_told(nodes: tuple[Node, Node]) -> None:
    front, _ = nodes
    for rid, query, headers in [
        ("w6", "?prefer=nobody,back", {}),
        ("w7", "", {"X_Viiwork_Prefer": "back"}),
        ("w8", "?prefer=back", {"X_Viiwork_Prefer": "front"}),
    ]:
        assert served(front, "both", rid, query, **headers)["x-viiwork-node"] == "back"
        assert why(front, rid)["choices"][0]["rule"] == "the client prefers it"
    assert served(front, "both", "w9", "?host=front&prefer=back")["x-viiwork-node"] == "front"
    for path in ("/v1/chat/completions?prefer=a%20b", "/v1/chat/completions?host=front&prefer=a%20b"):
        refused = asyncio.run(ask(front, chat("both"), path=path))
        assert (refused.status, refused.error["message"].split(";")[0]) == (400, "invalid prefer parameter")


def test_who_waits_is_told_with_place_and_estimate(nodes: tuple[Node, Node]) -> None:
    front, back = nodes

    async def scene() -> None:
        body = chat("far", script(("gate", "why"), ("json", 200, "{}")))
        held = [asyncio.ensure_future(ask(front, body)) for _ in range(2)]
        await soon(lambda: back.model("far")["busy"] == 2, "the slots are taken")
        named = [("X-Request-Id", "w10")]
        waiting = asyncio.ensure_future(ask(front, chat("far"), headers=named))

        # The model is another node's, so that it stands beside the models of this one.
        def told() -> dict[str, Any]:
            (entry,) = front.get("/v1/status").get("queue", [{}])
            return dict(entry) if "estimate_s" in entry else {}

        # While the other node's report is late, nothing can be estimated.
        entry = await soon(told, "it waits")
        assert (entry["model"], entry["request_id"], entry["position"]) == ("far", "w10", 1)
        assert 0 <= entry["waited_s"] < 10
        assert 0 <= entry["estimate_s"] < 10, "what was served before took its time"
        assert why(front, "w10")["state"] == "waiting"
        back.engine("far").open("why")
        assert [(await one).status for one in (*held, waiting)] == [200] * 3
        assert "queue" not in front.get("/v1/status")
        assert why(front, "w10")["queued_ms"] > 0

    asyncio.run(scene())


def explained(node: Node, *args: str) -> subprocess.CompletedProcess[str]:
    return command(node, "why", *args, VIIWORK_MESH_SECRET=SECRET)


def test_the_command_tells_it_in_words(nodes: tuple[Node, Node]) -> None:
    front, back = nodes
    served(front, "both", "w11", "?prefer=back")
    ended = explained(back, "w11")
    assert ended.returncode == 0, ended.stderr
    lines = ended.stdout.splitlines()
    assert lines[0].startswith("w11  ")
    assert lines[0].endswith("at front  /v1/chat/completions")
    assert "preferred  back" in lines
    assert "  the client prefers it" in lines
    assert "ran        peer back" in lines
    assert "tokens     prompt 5, cached 2, completion 1" in lines
    assert all(len(line) <= 80 for line in lines)
    assert json.loads(explained(front, "w11", "--json").stdout) == why(front, "w11")
    unknown = explained(front, "never")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "no node that answers knows a request never" in unknown.stderr


def test_each_node_records_what_its_own_clients_asked(nodes: tuple[Node, Node]) -> None:
    front, back = nodes
    served(front, "far", "w12", X_Session_Id="recorded")
    path = front.folder.parent / "front.jsonl"
    until(path.read_bytes, "it is written within seconds")
    before = len(read(path))
    served(front, "far", "w13", X_Session_Id="recorded")
    until(lambda: len(read(path)) > before, "the next one too")
    records = read(path)
    assert {(one.prompt_tokens, one.answer_tokens) for one in records} == {(5, 1)}
    assert "recorded" not in path.read_text()
    assert TEXT not in path.read_text()
    assert read(back.folder.parent / "back.jsonl") == [], "a forward is the other node's to record"


@pytest.mark.parametrize("size", [1, 4096, 12_000])
def test_a_session_may_be_called_anything(nodes: tuple[Node, Node], size: int) -> None:
    front, _ = nodes
    rid = f"w14-{size}"
    value = "".join(chr(0x21 + number % 0xDE) if number % 0xDE != 0x5E else "x" for number in range(size))
    served(front, "both", rid, X_Session_Affinity=value)
    assert why(front, rid)["session"]["found"] == "header"
    served(front, "both", f"{rid}-again", X_Session_Affinity=value)
    assert why(front, rid)["session"]["hash"] == why(front, f"{rid}-again")["session"]["hash"]
    # Empty is absent.
    served(front, "both", f"{rid}-none", X_Session_Affinity="", X_Session_Id=value)
    assert why(front, f"{rid}-none")["session"]["hash"] == why(front, rid)["session"]["hash"]
