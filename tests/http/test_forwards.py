"""Through another node: everything is as it is here, and nobody forwards twice."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from http_node import Answer, Node, ask, chat, connected, model, script, soon, streamed, until
from meshes import meeting

WORD = 'data: {"choices":[{"delta":{"content":"👩‍💻"}}]}\n\n'.encode()
DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class Pair:
    """Two nodes of one mesh: `front` has no model of its own but "shared", `back` has all."""

    front: Node
    back: Node


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("pair")
    shared = model("shared", "scripted-shared", kv_share={"group": "g", "min_tokens": 1})
    models = [model("far"), model("far-done", "scripted-done"), shared]
    with meeting(folder, ("127.0.0.11", "127.0.0.12"), {"models": [shared]}, {"models": models}) as (front, back):
        yield Pair(front, back)


def got(node: Node, name: str, steps: list[list[Any]] | None = None, **more: Any) -> Answer:
    headers = more.pop("headers", ())
    path = more.pop("path", "/v1/chat/completions")
    return asyncio.run(ask(node, chat(name, steps, **more), headers=headers, path=path))


@pytest.mark.parametrize("name", ["far", "far-done"])
def test_a_forwarded_stream_comes_out_as_it_went_in(pair: Pair, name: str) -> None:
    text = WORD * 3 + DONE
    pieces = [text[at : at + 5] for at in range(0, len(text), 5)]
    answer = got(pair.front, name, streamed(*pieces), stream=True, headers=[("X-Request-Id", f"fwd-{name}")])
    assert (answer.status, answer.body, answer.broken) == (200, text, False)
    assert answer.headers["x-viiwork-node"] == "back"
    assert answer.headers["x-viiwork-origin"] == "front"
    assert answer.headers["x-viiwork-backend"] == f"{name}/0"
    assert answer.headers["x-request-id"] == f"fwd-{name}"
    event = pair.front.heard("request", request_id=f"fwd-{name}")
    assert (event["status"], event["backend"], event["peer"]) == (200, None, "back")
    assert pair.back.heard("request", request_id=f"fwd-{name}")["backend"] == f"{name}/0"


def test_what_the_engine_is_asked_is_what_the_client_sent(pair: Pair) -> None:
    body = b' {"model":"far" , "script": [["json", 200, "{}"]], "huge": 1e400, "text": "\xc3\xbf", "id_slot": 9} '
    secrets = [("Authorization", "Bearer hush"), ("Cookie", "hush"), ("X-API-Key", "hush"), ("X-Session-Id", "hush")]
    assert asyncio.run(ask(pair.front, body, headers=secrets)).status == 200
    note = pair.back.engine("far").seen()[-1]
    sent = base64.b64decode(note["body"])
    assert b"1e400" in sent
    assert b'"\xc3\xbf"' in sent
    assert json.loads(sent.decode("utf-8", "replace"))["id_slot"] in (0, 1)
    headers = dict(note["headers"])
    assert "hush" not in str(headers)
    assert {name for name in headers if name.startswith("x-viiwork")} == set()
    assert len(headers["x-scripted-session"]) >= 16


def test_a_cut_is_seen_through_both_nodes(pair: Pair) -> None:
    for steps, stream in (
        (streamed(WORD, end=False), True),
        (script(("raw", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{"), ("cut",)), False),
    ):
        answer = got(pair.front, "far", steps, stream=stream)
        assert (answer.status, answer.broken) == (200, True)
    closing = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    answer = got(pair.front, "far-done", script(("raw", closing + WORD), ("cut",)), stream=True)
    assert (answer.body, answer.broken) == (WORD, True)


def test_an_engine_s_error_passes_through_both_nodes(pair: Pair) -> None:
    for status in (400, 404, 500):
        answer = got(pair.front, "far", script(("json", status, '{"error":"no"}')), stream=True)
        assert (answer.status, answer.body) == (status, b'{"error":"no"}')


@pytest.mark.parametrize("case", ["before", "after"])
def test_the_far_engine_sees_the_client_leave(pair: Pair, case: str) -> None:
    engine, rid = pair.back.engine("far"), f"leaves-{case}"
    steps = script(("hold",)) if case == "before" else script(("stream",), ("chunk", WORD), ("hold",))

    async def scene() -> None:
        async with connected(pair.front) as client:
            await client.ask(chat("far", steps, stream=True), headers=[("X-Request-Id", rid)])
            await soon(lambda: ["x-request-id", rid] in engine.seen()[-1]["headers"], "the engine has it")
            if case == "after":
                await client.read(await client.answer(), 1)
            at = client.leave()
        note = await soon(lambda: (one := engine.seen()[-1])["left"] and one, "the engine sees it leave")
        assert note["left"] - at < 1.0

    asyncio.run(scene())
    for node in (pair.front, pair.back):
        assert node.heard("request", request_id=rid)["status"] == 499
    until(lambda: pair.back.idle("far"), "the slot is free again")


def test_a_full_peer_is_waited_for(pair: Pair) -> None:
    async def scene() -> None:
        hold = chat("far", script(("gate", "full"), ("json", 200, "{}")))
        held = [asyncio.ensure_future(ask(pair.back, hold)) for _ in range(2)]
        await soon(lambda: pair.back.model("far")["busy"] == 2, "both slots are taken")
        waiting = asyncio.ensure_future(ask(pair.front, chat("far"), headers=[("X-Request-Id", "waits")]))
        done, _ = await asyncio.wait({waiting}, timeout=0.5)
        assert not done, "there is no room, and time is left"
        pair.back.engine("far").open("full")
        assert [(await one).status for one in (*held, waiting)] == [200] * 3

    asyncio.run(scene())


def test_a_pin_goes_where_it_says(pair: Pair) -> None:
    for node in (pair.front, pair.back):
        for host in ("front", "back"):
            answer = got(node, "shared", path=f"/v1/chat/completions?host={host}")
            assert (answer.status, answer.headers["x-viiwork-node"]) == (200, host)
    assert got(pair.front, "far", path="/v1/chat/completions?host=front").status == 404


def test_a_claim_that_is_not_proven_is_refused_and_not_forwarded(pair: Pair) -> None:
    claimed = [("X-Viiwork-Forwarded", "front"), ("X-Viiwork-Node", "front")]
    for node in (pair.front, pair.back):
        answer = got(node, "far", headers=claimed)
        assert (answer.status, answer.error["code"]) == (401, "unproven")
        assert answer.headers["x-request-id"]


def test_two_hundred_over_a_peer_get_honest_answers(pair: Pair) -> None:
    async def scene() -> list[Answer]:
        steps = script(("wait", 0.005), ("stream",), ("chunk", DONE), ("end",))
        return await asyncio.gather(*(ask(pair.front, chat("far", steps, stream=True)) for _ in range(200)))

    answers = asyncio.run(scene())
    assert {answer.status for answer in answers} <= {200, 429, 503}
    assert sum(answer.status == 200 for answer in answers) >= 2
    assert not any(answer.broken for answer in answers)
    assert all(answer.body == DONE for answer in answers if answer.status == 200)
    assert all(answer.headers["retry-after"] == "2" for answer in answers if answer.status != 200)
    assert pair.back.engine("far").most_at_once() <= 2
    until(lambda: pair.back.idle("far"), "every slot is free in the end")
    until(lambda: got(pair.front, "far").status == 200, "and the way there too")


def test_a_save_in_the_background_delays_nobody(pair: Pair) -> None:
    """A session's cache is being saved, which takes as long as the test likes; fifty requests go past it."""

    async def scene() -> None:
        async with asyncio.timeout(30), connected(pair.front) as client:
            path = "/v1/chat/completions?host=front"
            await client.ask(chat("shared"), path=path, headers=[("X-Session-Id", "s")])
            answer = await client.read(await client.answer())
            assert answer.status == 200
            await soon(lambda: "saving" in pair.front.slots("shared"), "its cache is being saved")
            for _ in range(50):
                await client.ask(chat("shared"), path=path)
                answer = await client.read(await client.answer())
                assert (answer.status, answer.headers["x-viiwork-queued-ms"]) == (200, "0")
            assert "saving" in pair.front.slots("shared")
        pair.front.engine("shared").open("save")
        await soon(lambda: pair.front.idle("shared"), "the slot is free again")

    asyncio.run(scene())
    pair.back.heard("kv received")
