"""What is read of a reply while it passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viiwork_core.proxy.reply import LONGEST_LINE, Reply
from viiwork_core.routing.conversation import beginning


def sse(*events: Any, lead: str = "") -> bytes:
    return (lead + "".join(f"data: {json.dumps(event)}\n\n" for event in events)).encode() + b"data: [DONE]\n\n"


def delta(**fields: Any) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "choices": [{"index": 0, "delta": fields}]}


def streamed(data: bytes, size: int = 10_000) -> Reply:
    reply = Reply(stream=True)
    for start in range(0, len(data), size):
        reply.feed(data[start : start + size])
    return reply


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_the_text_of_a_chat_in_any_pieces(size: int) -> None:
    data = sse(
        delta(role="assistant", content=None), delta(content=" Grüße"), delta(content=", world"), lead=": hi\n\n"
    )
    reply = streamed(data, size)
    assert (reply.text, reply.call, reply.id, reply.began) == (" Grüße, world", None, "chatcmpl-1", True)


def test_the_first_token_may_be_thought_and_is_not_the_role() -> None:
    assert not streamed(sse(delta(role="assistant", content=None))).began
    assert not streamed(sse(delta(role="assistant", content=""))).began
    for name in ("reasoning_content", "reasoning"):
        thinking = streamed(sse(delta(role="assistant"), delta(**{name: "Hmm"})))
        assert thinking.began
        assert thinking.text == ""


@pytest.mark.parametrize("size", [3, 10_000])
def test_a_call_is_found_behind_a_long_text(size: int) -> None:
    words = [delta(content=f"word {n} ") for n in range(200)]
    call = delta(tool_calls=[{"index": 0, "id": "call_7", "type": "function", "function": {"name": "x"}}])
    reply = streamed(sse(*words, call, delta(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}])), size)
    assert reply.call == "call_7"
    assert beginning(reply.text).startswith("word 0 word 1")
    assert len(reply.text) < 20_000


@pytest.mark.parametrize("size", [50, 100_000])
def test_no_more_is_read_than_tells_a_text_wherever_a_space_falls(size: int) -> None:
    for first in range(1, 9):
        words = [delta(content="x" * first), *(delta(content=" seven67") for _ in range(400))]
        reply = streamed(sse(*words), size)
        assert beginning(reply.text) == beginning("x" * first + " seven67" * 400)
        assert len(reply.text) < 400


def test_only_the_first_of_several_choices() -> None:
    other = {"choices": [{"index": 1, "delta": {"content": "no"}}]}
    assert streamed(sse(other, delta(content="yes"))).text == "yes"


def test_messages_of_anthropic() -> None:
    start = {"type": "message_start", "message": {"id": "msg_1", "content": []}}
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    said = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hello"}}
    tool = {"type": "content_block_start", "content_block": {"type": "tool_use", "id": "toolu_1", "name": "x"}}
    reply = streamed(sse(start, block, said, tool))
    assert (reply.id, reply.text, reply.call) == ("msg_1", "Hello", "toolu_1")
    plain = Reply(stream=False)
    body = {"id": "msg_2", "content": [{"type": "text", "text": "Hi"}, {"type": "tool_use", "id": "toolu_2"}]}
    plain.whole(json.dumps({"type": "message", **body}).encode())
    assert (plain.id, plain.text, plain.call) == ("msg_2", "Hi", "toolu_2")


def test_responses_of_openai() -> None:
    made = {"type": "response.created", "response": {"id": "resp_1"}}
    said = {"type": "response.output_text.delta", "delta": "Hello", "item_id": "m"}
    item = {"type": "response.output_item.added", "item": {"type": "function_call", "id": "fc_1", "call_id": "call_1"}}
    reply = streamed(sse(made, said, item))
    assert (reply.id, reply.text, reply.call) == ("resp_1", "Hello", "call_1")
    plain = Reply(stream=False)
    content = [{"type": "output_text", "text": "Hi"}]
    plain.whole(json.dumps({"id": "resp_2", "output": [{"type": "message", "content": content}]}).encode())
    assert (plain.id, plain.text) == ("resp_2", "Hi")


@pytest.mark.parametrize("kind", ["response.reasoning_text.delta", "response.reasoning_summary_text.delta"])
def test_the_first_token_of_a_response_may_be_thought(kind: str) -> None:
    item = {"type": "response.output_item.added", "item": {"type": "reasoning", "id": "rs_1"}}
    assert not streamed(sse(item)).began
    thinking = streamed(sse(item, {"type": kind, "delta": "Hmm"}))
    assert (thinking.began, thinking.text) == (True, "")


def test_the_first_token_of_a_completion() -> None:
    assert not streamed(sse({"choices": [{"index": 0, "text": ""}]})).began
    said = streamed(sse({"id": "cmpl-1", "choices": [{"index": 0, "text": "Hi"}]}))
    assert (said.began, said.text) == (True, "Hi")


def test_a_plain_chat() -> None:
    reply = Reply(stream=False)
    call = {"id": "call_1", "type": "function", "function": {"name": "x", "arguments": "{}"}}
    message = {"role": "assistant", "content": "Hi", "tool_calls": [call]}
    reply.whole(json.dumps({"id": "c", "choices": [{"index": 0, "message": message}]}).encode())
    assert (reply.id, reply.text, reply.call, reply.began) == ("c", "Hi", "call_1", True)


def test_captured_streams() -> None:
    folder = Path(__file__).parents[2] / "captures"
    found = sorted(path for path in folder.rglob("chat_stream*.sse"))
    assert found
    for path in found:
        reply = streamed(path.read_bytes(), 100)
        assert reply.began
        assert reply.text
        assert reply.id is not None
        assert reply.id.startswith("chatcmpl-")


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_anything_may_pass(chunks: list[bytes]) -> None:
    reply = Reply(stream=True)
    for chunk in chunks:
        reply.feed(chunk)
    assert len(reply._rest) <= LONGEST_LINE


def test_an_endless_line_is_not_kept() -> None:
    reply = Reply(stream=True)
    for _ in range(100):
        reply.feed(b"data: " + b"x" * 10_000)
    assert len(reply._rest) == LONGEST_LINE
