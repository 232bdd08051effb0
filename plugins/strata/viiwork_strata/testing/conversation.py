"""The double's model: a live conversation whose every answer depends on every token before it.

The state after a token is a hash of the state before it and the token, and the answer is read off the state. So a
cache that is wrong in one token, or is used for another prompt, gives another text than a cold run.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

TOKEN_BYTES = 4
ROW_BYTES = 32
LAYERS = 2
START = bytes(ROW_BYTES)
"""The state before the first token."""


def token_of(text: bytes) -> int:
    """A token's id, 31 bits. There is no way back: the double never needs the text of a prompt."""
    return zlib.crc32(text) & 0x7FFFFFFF


END_OF_MESSAGE = token_of(b"<|end|>")


def tokenize(messages: Sequence[Mapping[str, object]], tools: object = None) -> list[int]:
    """The prompt's tokens, 4 bytes of text a token, up to where the assistant's answer begins.

    A message's tokens depend on that message only, so a conversation that grew extends its earlier tokens.
    """
    tokens = _message("tools", json.dumps(tools, sort_keys=True)) if tools else []
    for message in messages:
        tokens += _message(str(message.get("role")), _text(message))
    return [*tokens, _role("assistant")]


def _message(role: str, text: str) -> list[int]:
    data = text.encode()
    pieces = [data[at : at + TOKEN_BYTES] for at in range(0, len(data), TOKEN_BYTES)]
    return [_role(role), *(token_of(piece) for piece in pieces), END_OF_MESSAGE]


def _role(role: str) -> int:
    return token_of(f"<|{role}|>".encode())


def _text(message: Mapping[str, object]) -> str:
    """The content, then what else the message carries (tool calls, say). Old reasoning is not read again."""
    content = message.get("content")
    text = content if isinstance(content, str) else json.dumps(content) if content is not None else ""
    rest = {key: message[key] for key in sorted(message) if key not in ("role", "content", "reasoning_content")}
    return text + (json.dumps(rest) if rest else "")


@dataclass(frozen=True, slots=True)
class Point:
    """A place in a conversation from which the engine can go on. A state cannot be cut shorter, only extended."""

    tokens: tuple[int, ...]
    state: bytes

    def precedes(self, prompt: Sequence[int]) -> bool:
        """True when the prompt begins with all tokens up to here, and one more is left to read."""
        return len(self.tokens) < len(prompt) and tuple(prompt[: len(self.tokens)]) == self.tokens


@dataclass(slots=True)
class Conversation:
    """The one live session: its tokens, its state, one checkpoint at the end of the last prompt, and a row per token
    and layer."""

    tokens: list[int] = field(default_factory=list)
    state: bytes = START
    checkpoint: Point | None = None
    layers: tuple[bytearray, ...] = field(default_factory=lambda: tuple(bytearray() for _ in range(LAYERS)))

    @property
    def point(self) -> Point:
        """Where the conversation stands."""
        return Point(tuple(self.tokens), self.state)

    def read(self, prompt: Sequence[int]) -> int:
        """Take the prompt in; the number of its tokens that were held already."""
        usable = [point for point in (self.point, self.checkpoint) if point is not None and point.precedes(prompt)]
        start = max(usable, key=lambda point: len(point.tokens), default=Point((), START))
        self._rewind(start)
        for token in prompt[len(start.tokens) : -1]:
            self._append(token)
        # Before the prompt's last token, so that the same prompt once more has something left to read.
        self.checkpoint = self.point
        self._append(prompt[-1])
        return len(start.tokens)

    def write(self) -> str:
        """The next 4 characters of the answer, which are one token."""
        piece = base64.b32encode(blake2b(self.state, digest_size=5).digest())[:TOKEN_BYTES].lower()
        self._append(token_of(piece))
        return piece.decode()

    def end(self) -> None:
        """Close the answer."""
        self._append(END_OF_MESSAGE)

    def _rewind(self, point: Point) -> None:
        self.tokens, self.state = list(point.tokens), point.state
        for layer in self.layers:
            del layer[len(point.tokens) * ROW_BYTES :]

    def _append(self, token: int) -> None:
        self.state = blake2b(self.state + struct.pack("<i", token), digest_size=ROW_BYTES).digest()
        self.tokens.append(token)
        for number, layer in enumerate(self.layers):
            layer.extend(self.state[number:] + self.state[:number])
