"""LiteLLM, which takes seconds to import: it does what it is told line by line."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import litellm
from litellm.proxy.client import ModelsManagementClient

litellm.telemetry = False
litellm.suppress_debug_info = True  # it would stand between the answers
HELLO = [{"role": "user", "content": "What is new in town?"}]


def chat(base: str, model: str, provider: str = "openai", **more: Any) -> Any:
    given = {"messages": HELLO, "max_retries": 0, "temperature": 0, "max_tokens": 24, **more}
    return litellm.completion(model=f"{provider}/{model}", api_base=f"{base}/v1", api_key="any", **given)


def plain(**given: Any) -> Any:
    reply = chat(**given)
    (choice,) = reply.choices
    calls = [[call.function.name, call.function.arguments] for call in choice.message.tool_calls or ()]
    return {"text": choice.message.content, "calls": calls, "completion_tokens": reply.usage.completion_tokens}


def stream(leave: int | None = None, **given: Any) -> Any:
    """The pieces of a streamed answer; after `leave` of them it is closed."""
    reply = chat(stream=True, **given)
    pieces = []
    for chunk in reply:
        pieces.append(chunk.choices[0].delta.content or "")
        if len(pieces) == leave:
            reply.completion_stream.close()
            break
    return pieces


def info(base: str) -> Any:
    """What a client of LiteLLM's proxy reads of the models."""
    return ModelsManagementClient(base, api_key="any").info()


def known(base: str) -> Any:
    """What LiteLLM itself finds when it asks an endpoint of this kind for its models."""
    return litellm.get_valid_models(
        check_provider_endpoint=True, custom_llm_provider="litellm_proxy", api_base=base, api_key="any"
    )


def main() -> None:
    things = {function.__name__: function for function in (plain, stream, info, known)}
    for line in sys.stdin:
        given = json.loads(line)
        try:
            answer = {"ok": things[given.pop("do")](**given)}
        except Exception as error:  # noqa: BLE001  # whatever it is, the test looks at it
            status = getattr(error, "status_code", None)
            answer = {"error": {"name": type(error).__name__, "status": status, "message": str(error)}}
        print(json.dumps(answer), flush=True)  # noqa: T201  # to the test
    os._exit(0)  # its own end takes seconds


main()
