"""One chat request's figures, as the double tells them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from viiwork_strata.testing.refusal import Refusal

ANSWER_TOKENS = 24
"""An answer ends by itself after so many tokens."""

THINKING_TOKENS = 4


@dataclass(slots=True)
class Answer:
    """`finish` is "stop", "length" or "cancel"."""

    prompt: int
    cached: int
    most: int
    generated: int = 0
    thinking: int = 0
    """How many of its first tokens are reasoning."""

    finish: str = "stop"
    started: float = field(default_factory=time.perf_counter)
    read_s: float = 0.0
    tail: str = ""

    @property
    def reported_finish(self) -> str:
        """Strata: "finish "cancel" is reported as "stop""."""
        return "stop" if self.finish == "cancel" else self.finish

    @property
    def usage(self) -> dict[str, object]:
        return {
            "prompt_tokens": self.prompt,
            "completion_tokens": self.generated,
            "total_tokens": self.prompt + self.generated,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    @property
    def timings(self) -> dict[str, object]:
        """Under llama.cpp's names, milliseconds."""
        write_s = time.perf_counter() - self.started - self.read_s
        return {
            "cache_n": self.cached,
            "prompt_n": self.prompt - self.cached,
            "prompt_ms": self.read_s * 1000,
            "predicted_n": self.generated,
            "predicted_ms": write_s * 1000,
        }

    @property
    def progress(self) -> dict[str, object]:
        """The prompt, read in one piece."""
        done = {"total": self.prompt, "cache": self.cached, "processed": self.prompt}
        return {**done, "time_ms": self.read_s * 1000}


def most_tokens(request: Mapping[str, object], room: int) -> int:
    """How many tokens the answer may have. Raises Refusal (400): nothing is ever cut to fit."""
    asked = request.get("max_tokens") or request.get("max_completion_tokens") or min(room, ANSWER_TOKENS)
    if not isinstance(asked, int) or asked < 1:
        raise Refusal(400, "max_tokens must be a positive whole number")
    if asked > room:
        raise Refusal(400, f"{asked} new tokens do not fit into the {room} that the prompt leaves of the context")
    return asked


def thinks(request: Mapping[str, object]) -> int:
    """Tokens of reasoning. Strata thinks unless told otherwise; the double only when it is told to."""
    effort = request.get("reasoning_effort")
    if effort not in (None, "none", "low", "medium", "high"):
        raise Refusal(400, "reasoning_effort must be none, low, medium or high")
    kwargs = request.get("chat_template_kwargs")
    enabled = isinstance(kwargs, dict) and kwargs.get("enable_thinking") is True
    return THINKING_TOKENS if enabled or effort not in (None, "none") else 0


def wants_json(request: Mapping[str, object]) -> bool:
    wanted = request.get("response_format")
    return isinstance(wanted, dict) and wanted.get("type") in ("json_object", "json_schema")
