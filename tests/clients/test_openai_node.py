"""OpenAI's client for Node."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from caller_process import CallerProcess, caller_process
from callers import EMBEDS, REAL, SCRIPTED
from held import held
from http_node import Node, script, streamed, until
from node_clients import installed
from told import CALL, DELTAS, ENDLESS, WORD

CALLER = Path(__file__).parent / "node" / "caller.mjs"


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CallerProcess]:
    clients = str(installed("openai"))
    with caller_process(["node", CALLER], tmp_path_factory.mktemp("node"), NODE_CLIENTS=clients) as caller:
        yield caller


def base(node: Node) -> dict[str, Any]:
    return {"base": f"http://{node.host}:{node.port}"}


def told(node: Node, steps: list[list[Any]], **more: Any) -> dict[str, Any]:
    return {**base(node), "model": SCRIPTED, "script": steps, **more}


def test_the_models_are_listed(process: CallerProcess, real_node: Node) -> None:
    assert process.do("models", **base(real_node)) == [REAL, EMBEDS]


def test_a_chat_is_answered_plainly_and_streamed(process: CallerProcess, real_node: Node) -> None:
    plain = process.do("plain", model=REAL, **base(real_node))
    pieces = process.do("stream", model=REAL, **base(real_node))
    assert plain["completion_tokens"] == 24
    assert len(pieces) > 10
    assert "".join(pieces) == plain["text"]


def test_an_unknown_model_is_not_found_in_the_nodes_words(process: CallerProcess, real_node: Node) -> None:
    error = process.fail("plain", model="nobody", **base(real_node))
    assert (error["name"], error["status"]) == ("NotFoundError", 404)
    assert f"known models: {REAL}, {EMBEDS}" in error["message"]


def test_a_stream_that_is_aborted_frees_its_slot(process: CallerProcess, real_node: Node) -> None:
    endless = {"model": REAL, "max_tokens": ENDLESS, "ignore_eos": True}
    assert len(process.do("stream", leave=2, **endless, **base(real_node))) >= 2
    assert real_node.heard("request", status=499, model=REAL)["reason"] == "the client left"
    until(lambda: real_node.idle(REAL), "the slot is free again", 5)


def test_tool_calls_come_back(process: CallerProcess, narrow_node: Node) -> None:
    whole = process.do("plain", **told(narrow_node, script(("json", 200, json.dumps(CALL)))))
    assert whole["calls"] == [["weather", '{"city":"Oslo"}']]


def test_streamed_tool_calls_are_put_together(process: CallerProcess, narrow_node: Node) -> None:
    end = WORD.replace(b'"delta":%b', b'"finish_reason":"tool_calls","delta":%b') % b"{}"
    steps = streamed(*(WORD % delta for delta in DELTAS), end, b"data: [DONE]\n\n")
    calls = process.do("gathered", **told(narrow_node, steps))
    assert calls == [["weather", '{"city":"Oslo"}'], ["clock", "{}"]]


def test_it_tries_again_when_it_is_refused(process: CallerProcess, narrow_node: Node) -> None:
    with held(narrow_node) as slot:
        process.begin("plain", **told(narrow_node, script(("json", 200, json.dumps(CALL))), maxRetries=3))
        slot.refused()
        slot.let_go()
        assert process.end()["ok"]["calls"]


def test_a_refusal_is_a_rate_limit(process: CallerProcess, narrow_node: Node) -> None:
    with held(narrow_node):
        error = process.fail("plain", **told(narrow_node, script(("json", 200, "{}"))))
    assert (error["name"], error["status"]) == ("RateLimitError", 429)
