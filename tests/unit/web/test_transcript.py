"""A request and its answer as text: each kind of API, whole and streamed, and what is none of them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from viiwork_core.observe.prompts import LONGEST_TEXT
from viiwork_core.web.transcript import Answer, said, transcript


def asked(**body: Any) -> list[tuple[str, str]]:
    return said(json.dumps(body).encode())


def streamed(*events: Any) -> str:
    return Answer.of(b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)).text()


def whole(**body: Any) -> str:
    return Answer.of(json.dumps(body).encode()).text()


def chunk(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta}]}


def test_messages_of_a_chat() -> None:
    call = {"function": {"name": "look", "arguments": '{"at":1}'}}
    parts = [{"type": "text", "text": "what is"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    messages = [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "a cat"},
    ]
    assert asked(messages=messages) == [
        ("system", "be kind"),
        ("user", "what is\n[image_url]"),
        ("assistant", 'look({"at":1})'),
        ("tool", "a cat"),
    ]


def test_other_requests() -> None:
    assert asked(prompt="once") == [("user", "once")]
    assert asked(prompt=["one", "two"]) == [("user", "one"), ("user", "two")]
    assert asked(input="embed me") == [("user", "embed me")]
    assert asked(
        instructions="be brief", input=[{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]
    ) == [
        ("system", "be brief"),
        ("user", "hi"),
    ]
    used = {"type": "tool_use", "name": "look", "input": {"at": 1}}
    result = {"type": "tool_result", "content": [{"type": "text", "text": "a cat"}]}
    messages = [{"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
    assert asked(system=[{"type": "text", "text": "be kind"}], messages=messages) == [
        ("system", "be kind"),
        ("assistant", 'look({"at":1})'),
        ("user", "a cat"),
    ]


@pytest.mark.parametrize(
    "raw", [b"", b"[]", b"nonsense", b'{"messages": 5}', b'{"messages": [7, null]}', b"\xff", b"[" * 9000]
)
def test_what_is_no_request_says_nothing(raw: bytes) -> None:
    assert said(raw) == []


@pytest.mark.parametrize("depth", [100, 400, 450, 480, 900, 5000])
def test_what_is_nested_deeply_harms_nothing(depth: int) -> None:
    nested = "[" * depth + '"x"' + "]" * depth
    assert said(f'{{"messages": [{{"role": "user", "content": {nested}}}]}}'.encode()) in ([("user", "x")], [])
    assert Answer.of(f'{{"output": [{{"content": {nested}}}]}}'.encode()).text() in ("x", "")


def test_half_a_character_harms_nothing() -> None:
    raw = b'{"messages": [{"role": "user", "content": "\\ud83d"}]}'
    assert json.dumps(said(raw), ensure_ascii=False).encode("utf-8")


def test_the_newest_of_a_request_is_kept() -> None:
    text = transcript([("user", "a" * LONGEST_TEXT), ("user", "b" * 10)])
    assert len(text) <= LONGEST_TEXT
    assert text.endswith("\n\n[user]\n" + "b" * 10)
    assert transcript([("system", "s"), ("user", "u")]) == "[system]\ns\n\n[user]\nu"
    assert len(transcript([("user", "x")] * 40_000)) <= LONGEST_TEXT


def test_streams() -> None:
    assert streamed(chunk(role="assistant"), chunk(content="he"), chunk(content="llo")) == "hello"
    call = {"index": 0, "function": {"name": "look", "arguments": "{}"}}
    both = streamed(chunk(reasoning_content="hm"), chunk(content="yes"), chunk(tool_calls=[call]))
    assert both == "[reasoning]\nhm\n\n[answer]\nyes\n\n[tool calls]\nlook{}"
    messages = [
        {"type": "content_block_start", "content_block": {"type": "tool_use", "name": "look", "input": {}}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "hi"}},
        {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "hm"}},
    ]
    assert streamed(*messages) == "[reasoning]\nhm\n\n[answer]\nhi\n\n[tool calls]\nlook({})"
    responses = [{"type": "response.output_text.delta", "delta": "hi"}, {"type": "response.completed", "response": {}}]
    assert streamed(*responses) == "hi"


def test_whole_answers() -> None:
    assert whole(choices=[{"message": {"content": "hello"}}]) == "hello"
    assert whole(choices=[{"text": "once"}]) == "once"
    assert whole(type="message", content=[{"type": "text", "text": "hi"}]) == "hi"
    assert whole(output=[{"type": "message", "content": [{"type": "output_text", "text": "hi"}]}]) == "hi"
    assert whole(data=[{"embedding": [1.0]}]) == ""


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"data: [DONE]\n\n",
        b": queued position=1\n\n",
        b'{"choices": 1}',
        b'data: {"choices": [null]}',
        b'{"a',
        b'{"choices": [{"delta": {"content": 5, "tool_calls": 7}}], "content": {}}',
    ],
)
def test_what_is_no_answer_says_nothing(raw: bytes) -> None:
    assert Answer.of(raw).text() == ""


def test_the_beginning_of_an_answer_is_kept() -> None:
    assert streamed(*[chunk(content="w" * 1000)] * 60) == "w" * LONGEST_TEXT
