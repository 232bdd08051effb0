"""The prompt history: what activity.prompts has a node keep of its clients' requests, in memory only.

Sizes, or the texts as well. Bounded in number and in bytes; the oldest goes first. It never leaves this process but to
whom the web layer lets read it, on the node's own machine.
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from typing import Final, Literal

import msgspec

Mode = Literal["off", "sizes", "full"]

LONGEST_TEXT: Final = 50_000
"""Characters of a prompt, its newest, and of an answer, its first, that are kept."""

MOST_BYTES: Final = 64 << 20
"""Memory that all kept texts take together."""

LISTED: Final = 100
"""Requests that a list has, the newest."""

LONGEST_LISTED: Final = 2_000
"""Characters of each text in a list; the whole is had by the request's id."""


class Prompt(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is kept of one request. None: not known, or not kept."""

    rid: str
    t: int
    """Unix seconds at which it came."""

    model: str
    status: int
    elapsed_ms: int
    messages: int | None = None
    prompt_chars: int | None = None
    """Characters of the texts of all its messages."""

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    gen_ms: int | None = None
    """From the first byte of the answer to its end."""

    prompt: str | None = None
    output: str | None = None

    def shortened(self) -> Prompt:
        """The same for a list."""
        return msgspec.structs.replace(self, prompt=_tail(self.prompt), output=_head(self.output))


def _tail(text: str | None) -> str | None:
    return text if text is None or len(text) <= LONGEST_LISTED else "…" + text[-LONGEST_LISTED:]


def _head(text: str | None) -> str | None:
    return text if text is None or len(text) <= LONGEST_LISTED else text[:LONGEST_LISTED] + "…"


class PromptHistory:
    """The newest `most` requests, as far as their texts fit into `most_bytes`. On the data loop."""

    def __init__(self, most: int, most_bytes: int = MOST_BYTES) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._kept: OrderedDict[str, Prompt] = OrderedDict()
        self._bytes = 0

    def add(self, prompt: Prompt) -> None:
        """Keep one more. Of several with one id the last is kept."""
        before = self._kept.pop(prompt.rid, None)
        self._bytes += _size(prompt) - (_size(before) if before else 0)
        self._kept[prompt.rid] = prompt
        while self._kept and (len(self._kept) > self._most or self._bytes > self._most_bytes):
            self._bytes -= _size(self._kept.popitem(last=False)[1])

    def find(self, rid: str) -> Prompt | None:
        """The whole of one; None: it never was kept, or is not any more."""
        return self._kept.get(rid)

    def newest(self) -> list[Prompt]:
        """The last ones, the newest first, with the beginnings and ends of their texts."""
        return [one.shortened() for one, _ in zip(reversed(self._kept.values()), range(LISTED), strict=False)]


def _size(prompt: Prompt) -> int:
    return sum(sys.getsizeof(text) for text in (prompt.prompt, prompt.output) if text is not None)
