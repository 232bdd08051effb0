"""The JSON of the fake engine's answers to a chat, in llama-server's shapes."""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from typing import Any

from viiwork_core.testing.fake_model import Slot


@dataclass(frozen=True)
class Task:
    """One chat request, checked."""

    ids: tuple[int, ...]
    limit: int
    """Tokens to write."""

    finish: str
    stream: bool
    include_usage: bool
    pin: int | None
    session: str | None


class Reply:
    """Makes the JSON of one answer."""

    def __init__(self, model: str, slot: Slot, task: Task, began: float) -> None:
        self.slot, self.task, self._began, self._read = slot, task, began, time.monotonic()
        self._cached = slot.cached_tokens
        self._id = f"chatcmpl-{uuid.uuid4().hex}"
        self._common = {"created": int(time.time()), "model": model, "system_fingerprint": "b0-fake"}

    def whole(self, text: str) -> dict[str, Any]:
        choice = {
            "finish_reason": self.task.finish,
            "index": 0,
            "message": {"role": "assistant", "content": text},
        }
        kind = {"object": "chat.completion", "usage": self.usage, "id": self._id, "timings": self.timings}
        return {"choices": [choice], **self._common, **kind}

    def chunk(self, delta: dict[str, Any], finish: str | None = None, **more: Any) -> str:
        choice = {"finish_reason": finish, "index": 0, "delta": delta}
        return json.dumps(self._event([choice], more), separators=(",", ":"))

    def usage_chunk(self) -> str:
        return json.dumps(self._event([], {"usage": self.usage, "timings": self.timings}), separators=(",", ":"))

    def _event(self, choices: list[Any], more: dict[str, Any]) -> dict[str, Any]:
        return {"choices": choices, **self._common, "id": self._id, "object": "chat.completion.chunk", **more}

    @property
    def usage(self) -> dict[str, Any]:
        read, written = len(self.task.ids), self.task.limit
        details = {"cached_tokens": self._cached}
        return {
            "completion_tokens": written,
            "prompt_tokens": read,
            "total_tokens": read + written,
            "prompt_tokens_details": details,
        }

    @property
    def timings(self) -> dict[str, Any]:
        read, written = len(self.task.ids) - self._cached, self.task.limit
        prompt, predicted = self._read - self._began, time.monotonic() - self._read
        return {"cache_n": self._cached, **_pace("prompt", read, prompt), **_pace("predicted", written, predicted)}


def _pace(name: str, tokens: int, seconds: float) -> dict[str, Any]:
    seconds = max(seconds, 1e-6)
    return {
        f"{name}_n": tokens,
        f"{name}_ms": seconds * 1000,
        f"{name}_per_token_ms": seconds * 1000 / max(tokens, 1),
        f"{name}_per_second": tokens / seconds,
    }
