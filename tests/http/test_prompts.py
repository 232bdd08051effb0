"""The prompt history: what is kept, for whom, and that no word of it is anywhere else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from collector import Collector, collecting
from commands import command
from http_node import CHAT, SECRET, Answer, Node, ask, chat, connected, model, script, soon, started, streamed, until
from key_holders import said
from meshes import asked, meeting

PATH = "/v1/prompts"
MARK = "zebra-marker"
WORDS = [
    f'data: {{"choices":[{{"index":0,"delta":{{"content":"{part}"}}}}]}}\n\n'.encode() for part in ("zebra", "-marker")
]
THOUGHT = b'data: {"choices":[{"index":0,"delta":{"reasoning_content":"well"}}]}\n\n'
DONE = b'data: {"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":2}}\n\ndata: [DONE]\n\n'


@dataclass(frozen=True)
class Pair:
    """`front` keeps all, `back` nothing; both send traces."""

    front: Node
    back: Node
    collector: Collector


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("prompts")
    quick = {"OTEL_BSP_SCHEDULE_DELAY": "50"}
    with collecting() as collector:
        more = {"telemetry": {"endpoint": collector.endpoint}, "routing": {"queue_timeout": "500ms", "queue_max": 1}}
        full = {"activity": {"prompts": "full", "prompt_history": 50}}
        one, other = {"models": [model("near")]}, {"models": [model("far", parallel=1)]}
        hosts = "127.0.0.51", "127.0.0.52"
        with meeting(folder, hosts, {**one, **more, **full}, {**other, **more}, environ=quick) as (front, back):
            yield Pair(front, back, collector)


def read(node: Node, path: str, *headers: tuple[str, str]) -> Answer:
    """As a browser on this machine does, by an address of it."""
    connection = HTTPConnection(node.host, node.port, timeout=10)
    try:
        connection.request("GET", path, headers=dict(headers))
        response = connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), [response.read()])
    finally:
        connection.close()


def kept(node: Node, rid: str) -> dict[str, Any]:
    """What is kept of a request: noted after its client has its answer."""
    found = until(lambda: (told := node.get(f"{PATH}?rid={rid}")) and "rid" in told and told, f"{rid} is kept")
    assert isinstance(found, dict)
    return found


def marked(name: str, steps: list[list[Any]] | None = None, **more: Any) -> bytes:
    body = json.loads(chat(name, steps, **more))
    return json.dumps(
        {**body, "messages": [{"role": "system", "content": "be kind"}, {"role": "user", "content": MARK}]}
    ).encode()


def test_all_of_a_conversation_is_kept_where_it_came_in(pair: Pair) -> None:
    for name, rid in (("near", "n"), ("far", "f")):
        body = marked(name, streamed(THOUGHT, *WORDS, DONE), stream=True)
        assert asked(pair.front, body, rid).status == 200
        one = kept(pair.front, rid)
        assert one["prompt"] == f"[system]\nbe kind\n\n[user]\n{MARK}"
        assert one["output"] == f"[reasoning]\nwell\n\n[answer]\n{MARK}"
        assert (one["model"], one["status"], one["messages"], one["prompt_chars"]) == (name, 200, 2, 7 + len(MARK))
        assert (one["prompt_tokens"], one["output_tokens"]) == (7, 2)
        assert one["elapsed_ms"] >= one["gen_ms"] >= 0
    assert pair.back.get(PATH)["error"]["code"] == "not_found"
    assert "activity.prompts is off" in pair.back.get(f"{PATH}?rid=f")["error"]["message"]


def test_a_plain_answer_and_a_refused_request_are_kept_too(pair: Pair) -> None:
    asked(pair.front, chat("near"), "plain")
    assert (kept(pair.front, "plain")["prompt"], kept(pair.front, "plain")["output"]) == ("[user]\nhello", "fine")
    asked(pair.front, marked("nobody-has-it"), "refused")
    assert (kept(pair.front, "refused")["status"], kept(pair.front, "refused")["output"]) == (404, "")


def test_a_large_request_and_a_long_answer_are_cut(pair: Pair) -> None:
    long = "ä👩" * 60_000
    words = [b'data: {"choices":[{"index":0,"delta":{"content":"%s"}}]}\n\n' % (b"w" * 10_000) for _ in range(7)]
    body = json.loads(chat("near", streamed(*words, DONE), stream=True))
    body["messages"] = [{"role": "user", "content": "first"}, {"role": "user", "content": long + "end"}]
    assert asked(pair.front, json.dumps(body).encode(), "large").status == 200
    one = kept(pair.front, "large")
    assert (len(one["prompt"]), one["prompt"][-3:], one["prompt_chars"]) == (50_000, "end", 5 + 120_003)
    assert (len(one["output"]), one["output"][:3]) == (50_000, "www")
    listed = next(one for one in pair.front.get(PATH)["prompts"] if one["rid"] == "large")
    assert (len(listed["prompt"]), len(listed["output"])) == (2001, 2001)


def test_the_node_says_that_it_keeps_texts(pair: Pair) -> None:
    assert pair.front.heard("texts of requests and answers are kept in memory")["level"] == "warning"
    assert pair.front.get("/v1/status")["prompts"] == "full"
    assert "prompts" not in pair.back.get("/v1/status")
    pages = {path: read(pair.front, path).body for path in ("/", "/mesh", "/chat", "/why")}
    assert [path for path, page in pages.items() if b"keeps the texts" not in page] == []
    assert b"keeps the texts" not in read(pair.back, "/").body


def test_only_this_machine_reads_it(pair: Pair) -> None:
    asked(pair.front, marked("near"), "mine")
    kept(pair.front, "mine")
    assert any(one["rid"] == "mine" for one in json.loads(read(pair.front, "/v1/activity").body)["prompts"])
    assert "prompts" not in json.loads(read(pair.back, "/v1/activity").body)
    for headers in (
        [("Origin", "http://elsewhere.example")],
        [("X-Forwarded-For", "192.0.2.7")],
        [("Forwarded", "for=192.0.2.7")],
        [("Via", "1.1 proxy")],
    ):
        answer = read(pair.front, PATH, *headers)
        assert (answer.status, MARK in answer.body.decode()) == (403, False), headers
        assert MARK not in read(pair.front, "/v1/activity", *headers).body.decode()
    strange = asyncio.run(_with_host(pair.front, "node.example"))
    assert (strange.status, MARK in strange.body.decode()) == (403, False)


async def _with_host(node: Node, host: str) -> Answer:
    async with asyncio.timeout(10), connected(node) as client:
        await client.send(f"GET {PATH} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        return await client.read(await client.answer("GET"))


def prompts(node: Node, *args: str) -> str:
    """What `viiwork prompts` prints when it succeeds."""
    done = command(node, "prompts", *args, VIIWORK_MESH_SECRET=SECRET)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_command_lists_and_shows(pair: Pair) -> None:
    asked(pair.front, marked("near"), "by-hand")
    kept(pair.front, "by-hand")
    assert "by-hand" in prompts(pair.front)
    assert f"[user]\n{MARK}" in prompts(pair.front, "by-hand")
    refused = command(pair.back, "prompts", VIIWORK_MESH_SECRET=SECRET)
    assert (refused.returncode, "activity.prompts" in refused.stderr) == (1, True)


def test_with_api_keys_the_operator_alone_reads_it(tmp_path: Path) -> None:
    config = {"models": [model("m")], "activity": {"prompts": "full"}}
    with started("keyed", tmp_path / "keyed", config) as node:
        token = said(node, "new", "alice").split()[0]
        key = ("Authorization", f"Bearer {token}")
        assert asked(node, marked("m"), "r", key).status == 200
        answer = read(node, PATH, key)
        assert (answer.status, answer.error["code"]) == (403, "forbidden")
        assert MARK not in read(node, "/v1/activity", key).body.decode()
        operator = ("X-Viiwork-Operator", (node.folder / "state" / "operator.token").read_text())
        assert MARK in read(node, PATH, operator).body.decode()
        assert MARK in prompts(node, "r")
        assert read(node, PATH, ("X-Viiwork-Operator", "wrong")).status == 401


def test_sizes_are_kept_without_a_word(tmp_path: Path) -> None:
    with started("sized", tmp_path / "sized", {"models": [model("m")], "activity": {"prompts": "sizes"}}) as node:
        asked(node, marked("m"), "r")
        one = kept(node, "r")
        assert one.keys().isdisjoint({"prompt", "output"})
        assert (one["messages"], one["prompt_chars"], one["prompt_tokens"], one["output_tokens"]) == (2, 19, 5, 1)
        assert MARK not in read(node, PATH).body.decode()
        assert b"keeps the texts" not in read(node, "/").body
        assert "r" in prompts(node)


def test_off_nothing_is_kept(tmp_path: Path) -> None:
    with started("off", tmp_path / "off", {"models": [model("m")]}) as node:
        asked(node, marked("m"), "r")
        assert read(node, PATH).status == 404
        assert node.get("/v1/activity").keys() == {"events"}


# No word anywhere else


def _everything(pair: Pair) -> None:
    """A request with the marker down each path that there is."""
    quoting = b'data: {"error": {"message": "cannot read: zebra-marker", "code": 500}}\n\n'
    for node in (pair.front, pair.back):
        for name in ("near", "far"):
            bodies = {
                "plain": marked(name),
                "stream": marked(name, streamed(*WORDS, DONE), stream=True),
                "cut": marked(name, streamed(*WORDS, end=False), stream=True),
                "error event": marked(name, streamed(quoting), stream=True),
                "later error event": marked(name, streamed(*WORDS, quoting), stream=True),
                "400": marked(name, script(("json", 400, json.dumps({"error": {"message": MARK}})))),
                "500": marked(name, script(("json", 500, MARK))),
                "no HTTP": marked(name, script(("raw", MARK.encode()), ("cut",))),
                "gone": marked(name, script(("cut",))),
                "typed": marked(name, n=MARK, max_tokens=MARK, stream=MARK, id_slot=MARK),
                "bad end": marked(name)[:-1],
                "bad start": f'{{"messages": "{MARK}"'.encode(),
                "no object": f'"{MARK}"'.encode(),
                "no model": json.dumps({"messages": MARK}).encode(),
                "model is no name": json.dumps({"model": {"a": MARK}}).encode(),
                "not UTF-8": MARK.encode() + b"\xff",
            }
            for number, body in enumerate(bodies.values()):
                headers = (("X-Session-Id", MARK), ("Authorization", f"Bearer {MARK}"), ("Cookie", MARK))
                asked(node, body, f"{node.name}-{name}-{number}", *headers)
            # An engine that refuses first, so that the request is tried again.
            (pair.front if name == "near" else pair.back).engine(name).refuse(503, 503)
            asked(node, marked(name), f"{node.name}-{name}-again")
        asked(node, marked("nobody-has-it"), f"{node.name}-unknown")
        asked(node, marked("near"), f"{node.name}-nowhere", path=f"{CHAT}?host=nowhere")
        asked(node, marked("near"), f"{node.name}-path", path="/v1/embeddings")
    asyncio.run(_crowd(pair))


async def _crowd(pair: Pair) -> None:
    """Some wait, some are refused because too many do, and one leaves."""
    async with asyncio.timeout(30), connected(pair.back) as holder:
        await holder.ask(marked("far", script(("hold",)), stream=True))
        await soon(lambda: pair.back.model("far")["busy"] == 1, "the slot is taken")
        crowd = [ask(node, marked("far")) for node in (pair.front, pair.back) for _ in range(3)]
        assert {one.status for one in await asyncio.gather(*crowd)} == {429}
        holder.leave()
        await soon(lambda: pair.back.idle("far"), "it is noticed")


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_no_log_trace_metric_file_or_other_node_has_a_word_of_it(pair: Pair) -> None:
    _everything(pair)
    asked(pair.front, chat("far"), "last")
    until(lambda: pair.collector.spans("last"), "the traces are sent")
    until(lambda: pair.front.events("request", request_id="last"), "the log is written")
    told = {"traces": pair.collector.raw}
    for node in (pair.front, pair.back):
        told[f"{node.name} log"] = node.log().encode()
        for path in ("/metrics", "/v1/status", "/v1/cluster", "/v1/status/history", "/v1/capacity", "/v1/kv"):
            told[f"{node.name} {path}"] = read(node, path).body
        for event in node.get("/v1/activity")["events"]:
            told[f"{node.name} event {event['n']}"] = json.dumps(event).encode()
            if "rid" in event:
                told[f"{node.name} why {event['rid']}"] = read(node, f"/v1/why/{event['rid']}").body
        told.update(_files(node.folder / "state"))
    assert [what for what, text in told.items() if b"zebra" in text] == []
    assert len(told) > 100
    assert MARK in json.dumps(pair.front.get(PATH)), "or the marker was nowhere at all"
