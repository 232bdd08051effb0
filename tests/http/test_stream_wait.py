"""A streamed request that waits is told its place in line, if it wants to be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from http_node import Answer, Client, Node, ask, chat, connected, model, script, soon, started, streamed

WANTED = ("X-Viiwork-Stream-Wait", "1")
WORD = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
FIRST = b": queued position=1\n\n"


@asynccontextmanager
async def full(node: Node, gate: str) -> AsyncIterator[None]:
    """Both slots are taken in the block, or until the gate opens."""
    body = chat("scripted", script(("gate", gate), ("json", 200, "{}")))
    held = [asyncio.ensure_future(ask(node, body)) for _ in range(2)]
    await soon(lambda: node.model("scripted")["busy"] == 2, "the slots are taken")
    try:
        yield
    finally:
        node.engine("scripted").open(gate)
        assert [(await one).status for one in held] == [200, 200]


async def queued(
    client: Client, steps: list[list[Any]] | None = None, *, headers: Sequence[tuple[str, str]] = (WANTED,), **more: Any
) -> Answer:
    """A streamed request that has to wait, and the head of its answer."""
    await client.ask(chat("scripted", steps, stream=True, **more), headers=headers)
    return await client.answer()


def comments(answer: Answer) -> list[bytes]:
    return [one for one in answer.body.split(b"\n\n") if one.startswith(b":")]


def last_error(answer: Answer) -> dict[str, Any]:
    """The error with which a stream ended."""
    assert answer.status == 200
    assert answer.broken, "never a clean end after a failure"
    assert b"[DONE]" not in answer.body
    event = answer.body.rstrip(b"\n").rsplit(b"\n\n", 1)[-1]
    return dict(json.loads(event.removeprefix(b"data: "))["error"])


def test_its_place_comes_first_and_then_the_answer(node: Node) -> None:
    async def scene() -> None:
        async with asyncio.timeout(20), connected(node) as client, full(node, "line-place"):
            answer = await queued(client, streamed(WORD, DONE), headers=(WANTED, ("X-Request-Id", "place")))
            assert answer.headers["content-type"] == "text/event-stream"
            assert answer.headers["x-request-id"] == "place"
            assert "content-length" not in answer.headers
            await client.read(answer, 1)
            assert answer.body == FIRST
            node.engine("scripted").open("line-place")
            await client.read(answer)
            assert answer.body.removeprefix(FIRST) == WORD + DONE
            assert not answer.broken
            event = await asyncio.to_thread(node.heard, "request", request_id="place")
            assert (event["status"], event["reason"]) == (200, None)
            assert event["queued_ms"] > 0

    asyncio.run(scene())


def test_each_change_of_its_place_is_told(node: Node) -> None:
    async def scene() -> None:
        async with asyncio.timeout(20), connected(node) as ahead, connected(node) as behind, full(node, "line-change"):
            await ahead.ask(chat("scripted"))
            await soon(lambda: node.model("scripted")["queued"] == 1, "it waits")
            answer = await queued(behind, streamed(DONE))
            await behind.read(answer, 1)
            assert answer.body == b": queued position=2\n\n"
            ahead.leave()
            await behind.read(answer, 2)
            assert comments(answer) == [b": queued position=2", b": queued position=1"]
            node.engine("scripted").open("line-change")
            assert (await behind.read(answer)).body.endswith(DONE)

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("stream", "headers"), [(True, ()), (True, [("X-Viiwork-Stream-Wait", "0")]), (False, [WANTED])]
)
def test_without_being_asked_the_status_stays_open(
    node: Node, stream: bool, headers: Sequence[tuple[str, str]]
) -> None:
    async def scene() -> None:
        async with full(node, f"line-open-{stream}-{len(headers)}"):
            answer = await ask(node, chat("scripted", stream=stream), headers=headers)
            assert (answer.status, answer.error["code"]) == (429, "no_free_slot")

    asyncio.run(scene())


def test_one_that_need_not_wait_has_an_ordinary_answer(node: Node) -> None:
    answer = asyncio.run(ask(node, chat("scripted", streamed(WORD, DONE), stream=True), headers=[WANTED]))
    assert (answer.status, answer.body, answer.broken) == (200, WORD + DONE, False)
    assert answer.headers["x-viiwork-backend"] == "scripted/0"


def test_when_no_slot_comes_free_the_stream_says_so_and_breaks(node: Node) -> None:
    async def scene() -> None:
        async with asyncio.timeout(20), connected(node) as client, full(node, "line-late"):
            answer = await queued(client, headers=(WANTED, ("X-Request-Id", "too-late")))
            error = last_error(await client.read(answer))
            assert (error["code"], error["type"], error["src"]) == ("no_free_slot", "rate_limit", "viiwork")
            event = await asyncio.to_thread(node.heard, "request", request_id="too-late")
            assert event["status"] == 429

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("name", "steps", "expected"),
    [
        (
            "refused",
            script(("json", 400, '{"error": {\n"message": "bad", "type": "invalid_request_error", "code": 400}}')),
            {"message": "bad", "type": "invalid_request_error", "code": 400},
        ),
        (
            "words",
            script(("json", 500, "out of memory")),
            {"message": "the engine answered 500: out of memory", "type": "server_error", "code": 500, "src": "engine"},
        ),
        (
            "no-stream",
            script(("json", 200, '{"choices": []}')),
            {
                "message": "the engine answered a request for a stream without one",
                "type": "server_error",
                "code": 200,
                "src": "engine",
            },
        ),
    ],
)
def test_an_engine_s_refusal_is_an_event(
    node: Node, name: str, steps: list[list[Any]], expected: dict[str, Any]
) -> None:
    async def scene() -> None:
        async with asyncio.timeout(20), connected(node) as client:
            async with full(node, f"line-{name}"):
                answer = await queued(client, steps)
                await client.read(answer, 1)
            assert last_error(await client.read(answer)) == expected
            await soon(lambda: node.idle("scripted"), "its slot is free")

    asyncio.run(scene())


def test_a_place_that_fails_before_its_answer_is_followed_by_another(node: Node) -> None:
    """Comments are not the answer: until that has begun, another route may still be tried."""

    async def scene() -> None:
        async with asyncio.timeout(20), connected(node) as client:
            async with full(node, "line-again"):
                answer = await queued(client, streamed(WORD, DONE))
                await client.read(answer, 1)
                node.engine("scripted").refuse(503)
            await client.read(answer)
            assert answer.body.endswith(WORD + DONE)
            assert not answer.broken
            assert set(comments(answer)) == {b": queued position=1"}

    asyncio.run(scene())


def test_an_answer_that_is_cut_is_broken_as_ever(node: Node) -> None:
    async def scene() -> None:
        async with asyncio.timeout(20), connected(node) as client:
            async with full(node, "line-cut"):
                answer = await queued(client, streamed(WORD, end=False))
                await client.read(answer, 1)
            await client.read(answer)
            assert answer.broken
            assert answer.body == FIRST + WORD

    asyncio.run(scene())


def test_a_client_that_leaves_the_line_is_forgotten(node: Node) -> None:
    async def scene() -> None:
        async with asyncio.timeout(20), connected(node) as client, full(node, "line-left"):
            answer = await queued(client, headers=(WANTED, ("X-Request-Id", "left-line")))
            await client.read(answer, 1)
            client.leave()
            await soon(lambda: node.model("scripted")["queued"] == 0, "it waits no longer")
            event = await asyncio.to_thread(node.heard, "request", request_id="left-line")
            assert (event["status"], event["backend"]) == (499, None)

    asyncio.run(scene())


def test_an_old_client_reads_its_error_too(node: Node) -> None:
    async def scene() -> None:
        body = chat("scripted", stream=True)
        head = f"POST /v1/chat/completions HTTP/1.0\r\n{WANTED[0]}: 1\r\nContent-Length: {len(body)}\r\n\r\n"
        async with asyncio.timeout(20), connected(node) as client, full(node, "line-old"):
            await client.send(head.encode() + body)
            said = await client.reader.read()
            assert said.partition(b"\r\n\r\n")[2].startswith(FIRST)
            assert b'"no_free_slot"' in said
            assert b"[DONE]" not in said

    asyncio.run(scene())


def test_the_configuration_can_want_it_for_all(tmp_path: Path) -> None:
    api = {"port": 0, "stream_wait": True}
    config = {"api": api, "routing": {"queue_timeout": "5s"}, "models": [model("scripted")]}
    with started("all", tmp_path / "all", config) as node:

        async def scene() -> None:
            async with asyncio.timeout(20), connected(node) as client:
                async with full(node, "line-all"):
                    answer = await queued(client, streamed(WORD, DONE), headers=())
                    await client.read(answer, 1)
                assert (await client.read(answer)).body == FIRST + WORD + DONE

        asyncio.run(scene())


# The place is there, and the first token is not

WAITS = b": waiting for the first token\n\n"


@pytest.mark.parametrize("began", [False, True])
def test_one_that_waits_for_its_first_token_is_told_so(node: Node, began: bool) -> None:
    """Whether the engine has sent its answer's head or not."""
    gate = f"prefill-{began}"
    head, rest = [("stream",)], [("gate", gate), ("chunk", WORD), ("chunk", DONE), ("end",)]
    steps = script(*head, *rest) if began else script(rest[0], *head, *rest[1:])

    async def scene() -> None:
        async with asyncio.timeout(40), connected(node) as client:
            answer = await queued(client, steps, headers=(WANTED, ("X-Request-Id", gate)))
            await client.read(answer, 1)
            assert answer.body == WAITS
            node.engine("scripted").open(gate)
            await client.read(answer)
            assert answer.body.replace(WAITS, b"") == WORD + DONE
            assert not answer.broken
            assert (await asyncio.to_thread(node.heard, "request", request_id=gate))["status"] == 200

    asyncio.run(scene())


def test_an_error_after_such_a_comment_is_an_event(node: Node) -> None:
    async def scene() -> None:
        async with asyncio.timeout(40), connected(node) as client:
            steps = script(("gate", "prefill-error"), ("json", 400, '{"error": {"message": "too long"}}'))
            answer = await queued(client, steps)
            await client.read(answer, 1)
            assert (answer.status, answer.body) == (200, WAITS)
            node.engine("scripted").open("prefill-error")
            assert last_error(await client.read(answer)) == {"code": 400, "message": "too long"}

    asyncio.run(scene())


def test_one_that_did_not_ask_is_told_nothing(node: Node) -> None:
    """Its status stays open for as long as the engine takes."""

    async def scene() -> None:
        async with asyncio.timeout(40), connected(node) as asks, connected(node) as client:
            steps = script(("gate", "prefill-quiet"), ("json", 400, "{}"))
            await client.ask(chat("scripted", steps, stream=True))
            told = await queued(asks, steps)
            await asks.read(told, 1)
            node.engine("scripted").open("prefill-quiet")
            answer = await client.read(await client.answer())
            assert (answer.status, answer.body) == (400, b"{}")
            last_error(await asks.read(told))

    asyncio.run(scene())
