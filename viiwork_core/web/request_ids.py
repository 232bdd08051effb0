"""The id of an answer: X-Request-Id as OpenAI's clients read it, and on Anthropic's paths request-id as theirs do."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Final

from viiwork_core.proxy.headers import first
from viiwork_core.proxy.request import Send

MESSAGES: Final = "/v1/messages"
"""Anthropic's path; its others stand below it."""

_OPENAI: Final = b"x-request-id"
_ANTHROPIC: Final = b"request-id"


def is_anthropic(path: str) -> bool:
    """Whether a path is of Anthropic's API."""
    return path == MESSAGES or path.startswith(f"{MESSAGES}/")


def told_twice(send: Send) -> Send:
    """`send`, with an answer's X-Request-Id as its request-id too, in place of what an engine or a peer said there."""

    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = [pair for pair in message.get("headers", ()) if pair[0].lower() != _ANTHROPIC]
            rid = first(headers, _OPENAI)
            if rid is not None:
                headers.append((_ANTHROPIC, rid.encode("latin-1")))
            message = {**message, "headers": headers}
        await send(message)

    return sent
