"""An answer that breaks off never looks complete."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from http_node import Answer, Node, ask, chat, connected, model, script, started, streamed

WORD = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
DONE = b"data: [DONE]\n\n"
CLOSING = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"
"""The head of an answer whose end is the connection's."""


def answered(node: Node, kind: str, steps: list[list[Any]], rid: str, *, stream: bool = True) -> Answer:
    return asyncio.run(ask(node, chat(kind, steps, stream=stream), headers=[("X-Request-Id", rid)]))


@pytest.mark.parametrize("kind", ["scripted", "scripted-done", "scripted-usage"])
@pytest.mark.parametrize("events", [(), (WORD,), (WORD, WORD[:20]), (WORD, DONE)])
def test_a_stream_without_its_last_chunk_is_broken_for_the_client(
    node: Node, kind: str, events: Sequence[bytes]
) -> None:
    rid = f"cut-{kind}-{len(b''.join(events))}"
    answer = answered(node, kind, streamed(*events, end=False), rid)
    assert (answer.status, answer.broken) == (200, True)
    assert b"".join(events).startswith(answer.body)
    event = node.heard("request", request_id=rid)
    assert event["status"] == 502
    assert "the answer broke off" in event["reason"]


def test_a_plain_answer_that_is_short_is_broken_for_the_client(node: Node) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
    answer = answered(node, "scripted", script(("raw", head + b'{"a":'), ("cut",)), "short", stream=False)
    assert (answer.headers["content-length"], answer.body, answer.broken) == ("100", b'{"a":', True)
    assert node.heard("request", request_id="short")["status"] == 502


@pytest.mark.parametrize(
    "text", [WORD, WORD + b"data: [DON", WORD[:-4] + b"data: [DONE]", WORD + b'data: {"x": "\\ndata: [DONE]', b""]
)
def test_an_engine_whose_connection_s_end_proves_nothing_must_say_done(node: Node, text: bytes) -> None:
    rid = f"undone-{len(text)}"
    answer = answered(node, "scripted-done", script(("raw", CLOSING + text), ("cut",)), rid)
    assert answer.broken
    assert answer.body == text
    assert node.heard("request", request_id=rid)["reason"] == "the stream ended without [DONE]"


@pytest.mark.parametrize("text", [WORD + DONE, WORD + b"data:[DONE]\r\n\r\n", WORD + DONE + b": bye\n\n"])
def test_an_engine_that_says_done_is_believed(node: Node, text: bytes) -> None:
    answer = answered(node, "scripted-done", script(("raw", CLOSING + text), ("cut",)), "done")
    assert (answer.status, answer.body, answer.broken) == (200, text, False)


def test_an_answer_that_is_no_stream_needs_no_done(node: Node) -> None:
    answer = answered(node, "scripted-done", script(("json", 200, '{"a": 1}')), "plain")
    assert (answer.body, answer.broken) == (b'{"a": 1}', False)


def test_a_stream_that_the_client_asked_for_in_its_own_way_must_say_done_too(node: Node) -> None:
    steps = script(("raw", CLOSING + WORD), ("cut",))
    answer = asyncio.run(ask(node, chat("scripted-done", steps, stream="yes")))
    assert answer.broken


def test_an_error_that_ends_a_stream_is_passed_on_and_not_followed_by_anything(node: Node) -> None:
    error = b'data: {"error": {"code": 500, "message": "out of memory"}}\n\n'
    answer = answered(node, "scripted", streamed(WORD, error), "error")
    assert (answer.body, answer.broken) == (WORD + error, True)
    event = node.heard("request", request_id="error")
    assert (event["status"], event["reason"]) == (502, "the engine failed")


FAILED = b'data: {"error": {"type": "server_error", "message": "the engine died"}}\n\n'


@pytest.mark.parametrize("kind", ["scripted", "scripted-done", "scripted-usage"])
@pytest.mark.parametrize("pieces", [(WORD + FAILED + DONE,), (WORD, FAILED + DONE), (WORD, FAILED, DONE)])
def test_done_after_a_failure_proves_nothing_and_is_not_passed_on(
    node: Node, kind: str, pieces: Sequence[bytes]
) -> None:
    rid = f"failed-{kind}-{len(pieces)}-{len(pieces[0])}"
    answer = answered(node, kind, streamed(*pieces), rid)
    assert (answer.status, answer.body, answer.broken) == (200, WORD + FAILED, True)
    assert node.heard("request", request_id=rid)["status"] == 502


def test_a_failure_in_pieces_is_one_too(node: Node) -> None:
    pieces = [FAILED[at : at + 7] for at in range(0, len(FAILED), 7)]
    answer = answered(node, "scripted-done", streamed(WORD, *pieces, DONE), "pieces")
    assert (answer.body.rstrip(), answer.broken) == ((WORD + FAILED).rstrip(), True)


def test_a_stream_that_begins_with_a_failure_is_one_for_the_status(node: Node) -> None:
    """Nothing of an answer has gone out, so that another route might have been tried."""
    answer = answered(node, "scripted-done", streamed(FAILED, DONE), "first")
    assert (answer.status, answer.broken) == (502, False)
    assert "the engine failed: the engine died" in answer.error["message"]


def test_a_model_may_write_about_errors(node: Node) -> None:
    word = b'data: {"choices":[{"delta":{"content":"data: {\\"error\\": 1}"}}], "error": null}\n\n'
    answer = answered(node, "scripted-done", streamed(word, DONE), "about")
    assert (answer.body, answer.broken) == (word + DONE, False)


# A client for whom the connection's end is the answer's


def old_client(node: Node, body: bytes) -> tuple[bytes, bytes]:
    """Head and body as an HTTP/1.0 client gets them."""

    async def scene() -> bytes:
        async with asyncio.timeout(10), connected(node) as client:
            head = f"POST /v1/chat/completions HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n"
            await client.send(head.encode() + body)
            return await client.reader.read()

    head, _, text = asyncio.run(scene()).partition(b"\r\n\r\n")
    assert b"transfer-encoding" not in head.lower()
    return head, text


def test_an_old_client_gets_a_whole_stream(node: Node) -> None:
    head, text = old_client(node, chat("scripted", streamed(WORD, DONE), stream=True))
    assert b" 200 " in head.splitlines()[0]
    assert text == WORD + DONE


@pytest.mark.parametrize("last", [WORD, WORD[:20]])
def test_an_old_client_reads_that_its_stream_was_cut(node: Node, last: bytes) -> None:
    _, text = old_client(node, chat("scripted", streamed(WORD, last, end=False), stream=True))
    events = [one for one in text.split(b"\n\n") if one]
    error = json.loads(events[-1].removeprefix(b"data: "))["error"]
    assert (error["code"], error["src"]) == ("answer_cut", "viiwork")
    assert text.startswith(WORD + last)
    assert b"[DONE]" not in text


def test_a_stream_that_outlives_the_grace_of_a_stop_is_broken_without_ado(tmp_path: Path) -> None:
    config = {"health": {"respawn_grace": "0.3s"}, "models": [model("scripted")]}
    with started("one", tmp_path / "one", config) as node:

        async def scene() -> Answer:
            async with connected(node) as client:
                steps = script(("stream",), ("chunk", WORD), ("hold",))
                await client.ask(chat("scripted", steps, stream=True))
                answer = await client.read(await client.answer(), pieces=1)
                node.process.terminate()
                return await client.read(answer)

        answer = asyncio.run(scene())
        assert (answer.status, answer.body, answer.broken) == (200, WORD, True)
        assert node.process.wait(20) == 0
        assert node.events("stopped")
        assert "Traceback" not in node.log()
