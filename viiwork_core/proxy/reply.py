"""The beginning of a reply, read as its bytes pass: what tells it from another, and when its first token came.

Knows the streams and bodies of /v1/chat/completions, /v1/completions, /v1/messages and /v1/responses.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

from viiwork_core.routing.conversation import holds_beginning

LONGEST_LINE: Final = 64 * 1024
"""Bytes of an unfinished line that are kept. A longer one is not read."""

_NULL: Final = msgspec.Raw(b"null")
_THOUGHTS: Final = ("response.reasoning_text.delta", "response.reasoning_summary_text.delta")
_CALLS: Final = (b'"tool_calls"', b'"tool_use"', b'"function_call"')
_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _Named(msgspec.Struct):
    id: str | None = None
    call_id: str | None = None
    type: str = ""
    text: str | None = None
    content: msgspec.Raw = _NULL


class _Delta(msgspec.Struct):
    """A message of OpenAI's chat or Anthropic's messages, whole or a part of it."""

    content: str | None = None
    text: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    tool_calls: list[_Named] | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Delta | None = None
    message: _Delta | None = None
    text: str | None = None


class _Event(msgspec.Struct):
    id: str | None = None
    type: str = ""
    choices: list[_Choice] | None = None
    delta: msgspec.Raw = _NULL
    content_block: _Named | None = None
    item: _Named | None = None
    response: _Named | None = None
    message: _Named | None = None
    content: list[_Named] | None = None
    output: list[_Named] | None = None


_event = msgspec.json.Decoder(_Event)
_delta = msgspec.json.Decoder(_Delta)
_string = msgspec.json.Decoder(str)
_blocks = msgspec.json.Decoder(list[_Named])


class Reply:
    """What has been read of one reply."""

    def __init__(self, *, stream: bool) -> None:
        self.id: str | None = None
        """The response's own id."""

        self.call: str | None = None
        """The id of its first tool call."""

        self.text = ""
        """Its text, at least as much as makes a mark."""

        self.began = not stream
        """Whether a first token was there: of text, of thinking, or of a tool call."""

        self._stream = stream
        self._rest = b""
        self._enough = False

    def feed(self, chunk: bytes) -> None:
        """See the next bytes of a stream."""
        if not self._stream or (self._enough and self.call is not None):
            return
        lines, newline, rest = (self._rest + chunk).rpartition(b"\n")
        self._rest = rest[:LONGEST_LINE] if newline else (self._rest + chunk)[:LONGEST_LINE]
        calls = any(word in lines for word in _CALLS)
        for line in lines.splitlines() if newline else ():
            # Of a burst of events no more are read than tell something: all of 64 take a sixth of relaying them.
            if self._enough and not calls:
                return
            if line.startswith(b"data:"):
                self._read(line[5:])
                self._enough = self._enough or holds_beginning(self.text)

    def whole(self, body: bytes) -> None:
        """See a plain answer."""
        self._read(body)

    def _read(self, data: bytes) -> None:
        try:
            event = _event.decode(data)
            self._take(event)
        except _UNREADABLE:
            # `[DONE]`, or the event of an engine that has its own: it tells nothing here.
            return

    def _take(self, event: _Event) -> None:
        named = event.response or event.message
        self.id = self.id or (named.id if named else None) or event.id
        for choice in event.choices or ():
            if choice.index == 0:
                self._said(choice.delta or choice.message or _Delta(text=choice.text))
        if event.type == "content_block_delta":
            self._said(_delta.decode(event.delta))
        elif event.type == "response.output_text.delta":
            self._said(_Delta(text=_string.decode(event.delta)))
        elif event.type in _THOUGHTS:
            self._said(_Delta(thinking=_string.decode(event.delta)))
        self._blocks([block for block in (event.content_block, event.item) if block is not None])
        self._blocks(event.content or ())
        for item in event.output or ():
            self._blocks([item])
            if item.type == "message" and item.content != _NULL:
                self._blocks(_blocks.decode(item.content))

    def _said(self, delta: _Delta | None) -> None:
        if delta is None:
            return
        text = delta.content or delta.text or ""
        calls = delta.tool_calls or ()
        if text or calls or delta.reasoning_content or delta.reasoning or delta.thinking:
            self.began = True
        if not self._enough:
            self.text += text
        self.call = self.call or next((call.id for call in calls if call.id), None)

    def _blocks(self, blocks: Iterable[_Named]) -> None:
        for block in blocks:
            if block.type == "tool_use":
                self.began, self.call = True, self.call or block.id
            elif block.type == "function_call":
                self.began, self.call = True, self.call or block.call_id
            elif block.text:
                self._said(_Delta(text=block.text))
