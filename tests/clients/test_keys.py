"""Each client with an API key as its users set it: the right one, a wrong one, and one for other models."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import anthropic
import openai
import pytest
from callers import SCRIPTED, base_url
from http_node import Node, model, script, started
from key_holders import new
from told import CALL, MESSAGE

HELLO: Any = [{"role": "user", "content": "What is new in town?"}]
WHOLE = {"script": script(("json", 200, json.dumps(CALL)))}


@dataclass(frozen=True)
class Guarded:
    """A node that asks for keys."""

    node: Node
    key: str
    limited: str
    """A key for another model."""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    with started("guarded", tmp_path_factory.mktemp("guarded") / "one", {"models": [model(SCRIPTED)]}) as node:
        yield Guarded(node, new(node, "alice"), new(node, "bob", models=["another"]))


def ask_openai(guarded: Guarded, key: str) -> Any:
    http = openai.DefaultHttpxClient(trust_env=False)
    with openai.OpenAI(base_url=base_url(guarded.node), api_key=key, http_client=http, max_retries=0) as ai:
        return ai.chat.completions.create(model=SCRIPTED, messages=HELLO, extra_body=WHOLE)


def ask_anthropic(guarded: Guarded, key: str) -> Any:
    http = anthropic.DefaultHttpxClient(trust_env=False)
    base = f"http://{guarded.node.host}:{guarded.node.port}"
    body = {"script": script(("json", 200, json.dumps(MESSAGE)))}
    with anthropic.Anthropic(base_url=base, api_key=key, http_client=http, max_retries=0) as ai:
        return ai.messages.create(model=SCRIPTED, messages=HELLO, max_tokens=24, extra_body=body)


CLIENTS = pytest.mark.parametrize(("ask", "errors"), [(ask_openai, openai), (ask_anthropic, anthropic)])


@CLIENTS
def test_the_right_key_opens(guarded: Guarded, ask: Any, errors: Any) -> None:
    assert ask(guarded, guarded.key)


@CLIENTS
@pytest.mark.parametrize("key", ["any", "vwk_" + "A" * 48])
def test_a_wrong_key_is_an_authentication_error(guarded: Guarded, ask: Any, errors: Any, key: str) -> None:
    with pytest.raises(errors.AuthenticationError, match="key") as caught:
        ask(guarded, key)
    assert caught.value.status_code == 401


@CLIENTS
def test_a_key_for_other_models_is_a_refusal(guarded: Guarded, ask: Any, errors: Any) -> None:
    with pytest.raises(errors.PermissionDeniedError, match=SCRIPTED):
        ask(guarded, guarded.limited)
