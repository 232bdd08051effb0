"""What the fake engine computes: tokens, slots with a cache, and text that depends on every token before it.

A slot's cache is one row a token: the token's id and a state that sums up the context up to there. The next word is
read off all states, so a wrong, foreign or misplaced row shows as other text, as a wrong KV cache would.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

WORD_LIST = """
apple bird boat bridge candle cat city cloud corn door east field fire fish garden gold grass hill horse house ice iron
island king lake lamp leaf light milk moon morning mountain night north ocean paper path plant queen rain river road
rock room salt sand sea seed ship silver sky snow south spring star stone street summer sun table tower tree valley
village wall water wheel wind window winter wood
"""
WORDS = tuple(WORD_LIST.split())

HEADER_BYTES = 64
ROW_BYTES = 8
MAGIC = '{"format": "fake-kv", "version": 1, "tokens": '

_TOKEN = re.compile(r"<\|\w+\|>| ?\w+| ?[^\w\s]|\s")


class BadCacheFile(ValueError):
    """The file is not one of ours, or is cut short."""


class Row(NamedTuple):
    """What the cache holds of one token."""

    id: int
    state: int


@dataclass
class Slot:
    """One slot of the engine with the cache that it holds."""

    id: int
    rows: list[Row] = field(default_factory=list)
    busy: bool = False
    last_used: int = 0
    session: str | None = None
    """The session header of the request that filled it."""

    task: int | None = None
    """Number of the last request; None also after a restore on a fresh server."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    decoded: int = 0
    remaining: int = 0

    def common(self, ids: Sequence[int]) -> int:
        """How many leading tokens of `ids` the cache holds."""
        for position, (row, wanted) in enumerate(zip(self.rows, ids, strict=False)):
            if row.id != wanted:
                return position
        return min(len(self.rows), len(ids))


def tokenize(text: str) -> list[str]:
    """Cut text into tokens, about one a word. Joined again they are the text."""
    return _TOKEN.findall(text)


def token_id(token: str) -> int:
    return zlib.crc32(token.encode())


def prompt_ids(text: str) -> list[int]:
    return [token_id(token) for token in tokenize(text)]


def render(messages: Sequence[Any]) -> str:
    """The chat template: ChatML, as the tiny model has it. Raises ValueError for what is not a message."""
    parts = []
    for message in messages:
        role = message.get("role") if isinstance(message, dict) else None
        if not role:
            raise ValueError("each message must be an object with a 'role'")
        parts.append(f"<|im_start|>{role}\n{_text(message.get('content'))}<|im_end|>\n")
    return "".join(parts) + "<|im_start|>assistant\n"


def _text(content: Any) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))


def prefill(slot: Slot, ids: Sequence[int], seed: int) -> int:
    """Make the slot hold exactly `ids`, keep what it shares with them, and return how many tokens were kept.

    The last token is always computed again, as llama.cpp does: a prompt is never cached whole.
    """
    kept = min(slot.common(ids), len(ids) - 1)
    del slot.rows[kept:]
    for wanted in ids[kept:]:
        append(slot, wanted, seed)
    slot.prompt_tokens, slot.cached_tokens = len(ids), kept
    return kept


def append(slot: Slot, wanted: int, seed: int) -> None:
    state = slot.rows[-1].state if slot.rows else seed
    slot.rows.append(Row(wanted, zlib.crc32(wanted.to_bytes(4, "little"), state)))


def next_token(slot: Slot) -> str:
    """The token that follows what the slot holds, with its leading space. Each row has a say in it."""
    return " " + WORDS[sum(row.state for row in slot.rows) % len(WORDS)]


def write_cache(slot: Slot, path: Path) -> int:
    """Write the slot's cache and return the bytes written: 64 of header (a line of JSON), then 8 for each token."""
    header = f"{MAGIC}{len(slot.rows)}}}".ljust(HEADER_BYTES - 1) + "\n"
    rows = b"".join(row.id.to_bytes(4, "little") + row.state.to_bytes(4, "little") for row in slot.rows)
    return path.write_bytes(header.encode() + rows)


def read_cache(path: Path) -> list[Row]:
    """Read a cache file. Raises BadCacheFile, or OSError."""
    content = path.read_bytes()
    header = re.fullmatch(re.escape(MAGIC) + r"(\d+)\} *\n", content[:HEADER_BYTES].decode("ascii", "replace"))
    if header is None:
        raise BadCacheFile("this is not a cache file of the fake engine")
    body = content[HEADER_BYTES:]
    if len(body) != int(header[1]) * ROW_BYTES:
        raise BadCacheFile(f"the file names {header[1]} tokens and holds {len(body) / ROW_BYTES:g}")
    numbers = [int.from_bytes(body[at : at + 4], "little") for at in range(0, len(body), 4)]
    return [Row(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]
