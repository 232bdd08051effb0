"""LangChain's ChatOpenAI and OpenAIEmbeddings."""

from __future__ import annotations

import json
import threading
from typing import Any

import langchain_openai
import openai  # LangChain's errors are those of OpenAI's client
import pytest
from callers import EMBEDS, REAL, SCRIPTED, base_url
from held import held
from http_node import Node, script, streamed, until
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from told import CALL, DELTAS, ENDLESS, WORD


@pytest.fixture(autouse=True)
def nothing_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """No trace is sent anywhere, and the proxy of whoever runs the tests is not asked for 127.0.0.1."""
    monkeypatch.setenv("LANGSMITH_TRACING", "false")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@tool
def weather(city: str) -> str:
    """The weather of a city."""
    return f"{city}: rain"


def chat(node: Node, model: str = REAL, **more: Any) -> Any:
    given = {"max_retries": 0, "temperature": 0, "max_tokens": 24, **more}
    return langchain_openai.ChatOpenAI(base_url=base_url(node), api_key="any", model=model, **given)


def told(node: Node, steps: list[list[Any]], **more: Any) -> Any:
    return chat(node, SCRIPTED, extra_body={"script": steps}, **more)


def test_a_chat_is_answered(real_node: Node) -> None:
    reply = chat(real_node).invoke("What is new in town?")
    assert reply.text
    assert reply.usage_metadata["output_tokens"] == 24
    assert reply.response_metadata["model_name"] == REAL


def test_a_stream_says_what_the_plain_answer_says(real_node: Node) -> None:
    pieces = [chunk.text for chunk in chat(real_node).stream("What is new in town?")]
    assert len(pieces) > 10
    assert "".join(pieces) == chat(real_node).invoke("What is new in town?").text


def test_embeddings(real_node: Node) -> None:
    embeddings = langchain_openai.OpenAIEmbeddings(
        base_url=base_url(real_node), api_key="any", model=EMBEDS, check_embedding_ctx_length=False, max_retries=0
    )
    one, other = embeddings.embed_documents(["one town", "another town"])
    assert len(one) == len(other) > 1


def test_a_tool_is_called_and_its_result_goes_back(narrow_node: Node, real_node: Node) -> None:
    question = HumanMessage("What is the weather in Oslo?")
    call = told(narrow_node, script(("json", 200, json.dumps(CALL)))).bind_tools([weather]).invoke([question])
    assert [(one["name"], one["args"]) for one in call.tool_calls] == [("weather", {"city": "Oslo"})]
    result = weather.invoke(call.tool_calls[0])
    assert result.content == "Oslo: rain"
    # A real engine takes the whole exchange, the call without text too.
    assert chat(real_node).bind_tools([weather]).invoke([question, call, result]).text


def test_a_streamed_tool_call_is_put_together(narrow_node: Node) -> None:
    steps = streamed(*(WORD % delta for delta in DELTAS), b"data: [DONE]\n\n")
    whole: Any = None
    for chunk in told(narrow_node, steps).bind_tools([weather]).stream("What is the weather in Oslo?"):
        whole = chunk if whole is None else whole + chunk
    assert [(one["name"], one["args"]) for one in whole.tool_calls] == [("weather", {"city": "Oslo"}), ("clock", {})]


def test_an_unknown_model_is_not_found_in_the_nodes_words(real_node: Node) -> None:
    with pytest.raises(openai.NotFoundError, match=f"known models: {REAL}, {EMBEDS}"):
        chat(real_node, "nobody").invoke("hello")


def test_it_tries_again_when_it_is_refused(narrow_node: Node) -> None:
    with held(narrow_node) as slot:
        freed = threading.Thread(target=lambda: (slot.refused(), slot.let_go()))
        freed.start()
        reply = told(narrow_node, script(("json", 200, json.dumps(CALL))), max_retries=3).invoke("hello")
        freed.join()
    assert reply.tool_calls


def test_a_refusal_is_a_rate_limit(narrow_node: Node) -> None:
    with held(narrow_node), pytest.raises(openai.RateLimitError, match="queue"):
        told(narrow_node, script(("json", 200, "{}"))).invoke("hello")


def test_a_stream_that_is_left_frees_its_slot(real_node: Node) -> None:
    endless = chat(
        real_node,
        max_tokens=ENDLESS,
        extra_body={"ignore_eos": True},
        default_headers={"X-Request-Id": "langchain-leaves"},
    )
    stream = endless.stream("What is new in town?")
    next(stream)
    stream.close()
    assert real_node.heard("request", request_id="langchain-leaves")["status"] == 499
    until(lambda: real_node.idle(REAL), "the slot is free again", 5)
