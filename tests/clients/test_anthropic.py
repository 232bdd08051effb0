"""Anthropic's own client on /v1/messages, which llama-server speaks."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from callers import EMBEDS, REAL, SCRIPTED
from held import held
from http_node import Node, script, until
from told import ENDLESS, MESSAGE

HELLO: Any = [{"role": "user", "content": "What is new in town?"}]
WEATHER: Any = {
    "name": "weather",
    "description": "The weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


def client(node: Node, **more: Any) -> Any:
    """The client as a user makes it: its address has no /v1. It tries once, unless `more` says otherwise."""
    http = anthropic.DefaultHttpxClient(trust_env=False)
    base = f"http://{node.host}:{node.port}"
    return anthropic.Anthropic(base_url=base, api_key="any", http_client=http, **{"max_retries": 0, **more})


@pytest.fixture
def ai(real_node: Node) -> Iterator[Any]:
    with client(real_node) as made:
        yield made


@pytest.fixture
def told(narrow_node: Node) -> Iterator[Any]:
    with client(narrow_node) as made:
        yield made


def greedy(ai: Any, *, ignore_eos: bool = False, **more: Any) -> Any:
    """The client has no parameter for the temperature any more; what stands in `extra_body` goes with the others."""
    body = {"temperature": 0, "ignore_eos": ignore_eos}
    return ai.messages.create(**{"model": REAL, "messages": HELLO, "max_tokens": 24, "extra_body": body, **more})


def call_a_tool(ai: Any) -> Any:
    body = {"script": script(("json", 200, json.dumps(MESSAGE)))}
    return ai.messages.create(model=SCRIPTED, messages=HELLO, max_tokens=24, tools=[WEATHER], extra_body=body)


def test_a_message_is_answered(ai: Any, real_node: Node) -> None:
    reply = greedy(ai, extra_headers={"X-Request-Id": "anthropic-plain"})
    assert reply.content[0].text.strip()
    assert (reply.role, reply.model, reply.stop_reason) == ("assistant", REAL, "max_tokens")
    assert reply.usage.output_tokens == 24
    event = real_node.heard("request", request_id="anthropic-plain")
    assert (event["status"], event["tokens_out"]) == (200, 24)


def test_an_answer_has_its_id_where_the_client_looks(ai: Any, real_node: Node) -> None:
    assert greedy(ai, extra_headers={"X-Request-Id": "anthropic-named"})._request_id == "anthropic-named"
    made = greedy(ai)._request_id
    assert real_node.heard("request", request_id=made)["status"] == 200
    with ai.messages.stream(model=REAL, messages=HELLO, max_tokens=2) as stream:
        assert real_node.get(f"/v1/why/{stream.request_id}")["request_id"] == stream.request_id
    with pytest.raises(anthropic.NotFoundError) as caught:
        greedy(ai, model="nobody", extra_headers={"X-Request-Id": "anthropic-lost"})
    assert caught.value.request_id == "anthropic-lost"


def test_a_stream_says_what_the_plain_answer_says(ai: Any) -> None:
    with ai.messages.stream(model=REAL, messages=HELLO, max_tokens=24, extra_body={"temperature": 0}) as stream:
        pieces = list(stream.text_stream)
        whole = stream.get_final_message()
    assert len(pieces) > 10
    assert "".join(pieces) == greedy(ai).content[0].text
    assert whole.usage.output_tokens == 24


def test_a_system_prompt_and_a_conversation(ai: Any) -> None:
    turns = [*HELLO, {"role": "assistant", "content": "Nothing."}, {"role": "user", "content": "And now?"}]
    longer = greedy(ai, messages=turns, system="Be brief.")
    assert longer.usage.input_tokens + (longer.usage.cache_read_input_tokens or 0) > 10


def test_tokens_are_counted(ai: Any) -> None:
    assert ai.messages.count_tokens(model=REAL, messages=HELLO).input_tokens > 5


def test_tools_are_taken(ai: Any) -> None:
    """Whether a model with random weights calls one is another question."""
    assert greedy(ai, tools=[WEATHER]).content


def test_a_tool_call_comes_back(told: Any) -> None:
    reply = call_a_tool(told)
    (call,) = reply.content
    assert (reply.stop_reason, call.type, call.name, call.input) == (
        "tool_use",
        "tool_use",
        "weather",
        {"city": "Oslo"},
    )


def test_an_unknown_model_is_not_found_in_the_nodes_words(ai: Any) -> None:
    with pytest.raises(anthropic.NotFoundError, match=f"known models: {REAL}, {EMBEDS}") as caught:
        greedy(ai, model="nobody")
    assert caught.value.status_code == 404


def test_a_refusal_is_a_rate_limit(told: Any, narrow_node: Node) -> None:
    with held(narrow_node), pytest.raises(anthropic.RateLimitError, match="queue") as caught:
        call_a_tool(told)
    assert caught.value.response.headers["retry-after"] == "2"


def test_it_tries_again_when_it_is_refused(told: Any, narrow_node: Node) -> None:
    with held(narrow_node) as slot:
        freed = threading.Thread(target=lambda: (slot.refused(), slot.let_go()))
        freed.start()
        reply = call_a_tool(told.with_options(max_retries=3))
        freed.join()
    assert reply.stop_reason == "tool_use"


def test_a_stream_that_is_closed_frees_its_slot(ai: Any, real_node: Node) -> None:
    headers = {"X-Request-Id": "anthropic-leaves"}
    with greedy(ai, max_tokens=ENDLESS, stream=True, extra_headers=headers, ignore_eos=True) as stream:
        assert next(iter(stream)).type == "message_start"
        until(lambda: "running" in real_node.slots(REAL), "it runs")
    assert real_node.heard("request", request_id="anthropic-leaves")["status"] == 499
    until(lambda: real_node.idle(REAL), "the slot is free again", 5)
