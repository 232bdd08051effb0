"""LiteLLM's SDK, and the client of its proxy that reads /v1/model/info."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from caller_process import CallerProcess, caller_process
from callers import EMBEDS, REAL, SCRIPTED
from held import held
from http_node import Node, script, until
from told import CALL, ENDLESS

CALLER = Path(__file__).with_name("litellm_caller.py")


class Lite:
    """LiteLLM that asks one node."""

    def __init__(self, process: CallerProcess, node: Node) -> None:
        self.process = process
        self._base = {"base": f"http://{node.host}:{node.port}"}

    def do(self, do: str, **given: Any) -> Any:
        return self.process.do(do, **self._base, **given)

    def fail(self, do: str, **given: Any) -> dict[str, Any]:
        return self.process.fail(do, **self._base, **given)

    def begin(self, do: str, **given: Any) -> None:
        self.process.begin(do, **self._base, **given)


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CallerProcess]:
    with caller_process([sys.executable, CALLER], tmp_path_factory.mktemp("litellm")) as caller:
        yield caller


@pytest.fixture
def lite(process: CallerProcess, real_node: Node) -> Lite:
    return Lite(process, real_node)


@pytest.fixture
def lite_told(process: CallerProcess, narrow_node: Node) -> Lite:
    return Lite(process, narrow_node)


def test_a_chat_is_answered_plainly_and_streamed(lite: Lite) -> None:
    plain = lite.do("plain", model=REAL)
    assert plain["completion_tokens"] == 24
    assert "".join(lite.do("stream", model=REAL)) == plain["text"]


def test_the_provider_for_its_own_proxy_works_too(lite: Lite) -> None:
    assert lite.do("plain", model=REAL, provider="litellm_proxy")["text"]


def test_its_proxys_client_reads_the_models(lite: Lite) -> None:
    info = {entry["model_name"]: entry for entry in lite.do("info")}
    assert info.keys() == {REAL, EMBEDS}
    assert info[REAL]["litellm_params"] == {"model": REAL}
    assert info[REAL]["model_info"] == {"max_input_tokens": 4096, "mode": "chat", "supports_function_calling": True}


def test_it_finds_the_models_by_itself(lite: Lite) -> None:
    assert {name.removeprefix("litellm_proxy/") for name in lite.do("known")} == {REAL, EMBEDS}


def test_an_unknown_model_is_told_in_the_nodes_words(lite: Lite) -> None:
    error = lite.fail("plain", model="nobody")
    assert (error["name"], error["status"]) == ("NotFoundError", 404)
    assert f"known models: {REAL}, {EMBEDS}" in error["message"]


def test_a_stream_that_is_closed_frees_its_slot(lite: Lite, real_node: Node) -> None:
    got = lite.do("stream", model=REAL, leave=2, max_tokens=ENDLESS, extra_body={"ignore_eos": True})
    assert len(got) == 2
    assert real_node.heard("request", status=499)["reason"] == "the client left"
    until(lambda: real_node.idle(REAL), "the slot is free again", 5)


def test_a_tool_call_comes_back(lite_told: Lite) -> None:
    answer = lite_told.do("plain", model=SCRIPTED, extra_body={"script": script(("json", 200, json.dumps(CALL)))})
    assert answer["calls"] == [["weather", '{"city":"Oslo"}']]


def test_it_tries_again_when_it_is_refused(lite_told: Lite, narrow_node: Node) -> None:
    body = {"script": script(("json", 200, json.dumps(CALL)))}
    with held(narrow_node) as slot:
        lite_told.begin("plain", model=SCRIPTED, max_retries=3, extra_body=body)
        slot.refused()
        slot.let_go()
        assert lite_told.process.end()["ok"]["calls"]


def test_a_refusal_is_a_rate_limit(lite_told: Lite, narrow_node: Node) -> None:
    with held(narrow_node):
        error = lite_told.fail("plain", model=SCRIPTED, extra_body={"script": script(("json", 200, "{}"))})
    assert (error["name"], error["status"]) == ("RateLimitError", 429)
    assert "queue" in error["message"]
