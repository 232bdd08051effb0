"""A conversation as a request shows it: a hash for every message, each over all that came before it.

Most clients name no session, so a request is recognised by the earlier one that it extends. No text is kept, only
keyed hashes. How a message is written does not matter: a plain string is its one text part, and the marks that a client
moves through its history for the provider's cache (`cache_control`) count for nothing.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

MARK_CHARACTERS: Final = 48
"""Characters of a reply that tell it from another, with white space collapsed."""

_LOOKED_AT: Final = 4 * MARK_CHARACTERS
"""White space is a small part of any text, so that this much of it holds the characters that are wanted."""

_NULL: Final = msgspec.Raw(b"null")
_SPACE = re.compile(r"\s+")

Raw = msgspec.Raw


class _Message(msgspec.Struct):
    role: str = ""
    content: Raw = _NULL
    tool_calls: Raw = _NULL
    tool_call_id: str = ""


class _Item(msgspec.Struct):
    """One item of a response, which is a list of thoughts, calls and messages."""

    type: str = ""
    call_id: str = ""


class _Part(msgspec.Struct):
    type: str = ""
    text: Raw = _NULL


class _Named(msgspec.Struct):
    id: str = ""
    type: str = ""


_message = msgspec.json.Decoder(_Message)
_item = msgspec.json.Decoder(_Item)
_parts = msgspec.json.Decoder(list[Raw])
_part = msgspec.json.Decoder(_Part)
_fields = msgspec.json.Decoder(dict[str, Raw])
_named = msgspec.json.Decoder(list[_Named])
_text = msgspec.json.Decoder(str)

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Mark(msgspec.Struct, frozen=True, gc=False):
    """What tells a reply from another to the same request: keyed hashes, None where there is nothing to hash."""

    call: int | None = None
    """Of its first tool call's id."""

    text: int | None = None
    """Of its first characters."""

    def fits(self, other: Mark) -> bool:
        """Whether both may be one reply. Ids decide where both have some; a reply without a mark fits any."""
        if self.call is not None and other.call is not None:
            return self.call == other.call
        return self.text is None or other.text is None or self.text == other.text


class Hashes(msgspec.Struct, frozen=True, gc=False):
    """Keyed 64-bit hashes of messages and replies."""

    key: bytes
    """16 to 64 bytes."""

    def mark(self, *, call: str | None, text: str) -> Mark:
        """The mark of a reply: its first tool call's id, and its text or at least the beginning of it."""
        text = beginning(text)
        return Mark(
            None if not call else self._hash(b"call", call.encode("utf-8", "surrogatepass")),
            None if not text else self._hash(b"text", text.encode("utf-8", "surrogatepass")),
        )

    def chain(self, opening: Iterable[bytes], messages: Sequence[Raw]) -> Chain:
        """The hashes of a request. `opening`: what precedes its messages (model, tools, instructions)."""
        link = self._hash(b"opening", *opening)
        links = [link := self._hash(link.to_bytes(8), *_spelled(message)) for message in messages]
        return Chain(tuple(links), messages, self)

    def _hash(self, *pieces: bytes | Raw) -> int:
        state = hashlib.blake2b(digest_size=8, key=self.key)
        for piece in pieces:
            # The length first, or "ab" + "c" would be "a" + "bc".
            state.update(len(memoryview(piece)).to_bytes(8))
            state.update(piece)
        return int.from_bytes(state.digest())


class Chain(msgspec.Struct, frozen=True):
    """One request's hashes."""

    links: tuple[int, ...]
    """One for each message, over it and all before it."""

    messages: Sequence[Raw]
    hashes: Hashes

    @property
    def last(self) -> int | None:
        """What the whole request is known by; None: it has no messages."""
        return self.links[-1] if self.links else None

    def mark(self, place: int) -> Mark:
        """The mark of the message at `place`, as the reply that it may have been, or as the beginning of one."""
        try:
            while place + 1 < len(self.messages) and _item.decode(self.messages[place]).type == "reasoning":
                place += 1  # thoughts may be left out of what a client repeats
            message = _message.decode(self.messages[place])
            call = _call_id(message) or _item_call(self.messages[place])
            return self.hashes.mark(call=call, text="".join(_texts(message.content)))
        except _UNREADABLE:
            return Mark()


def beginning(text: str) -> str:
    """The first characters of a reply, as a mark is made of them."""
    return _collapsed(text)[:MARK_CHARACTERS].rstrip()


def holds_beginning(text: str) -> bool:
    """Whether `beginning` would stay the same, whatever followed."""
    return len(text) >= MARK_CHARACTERS and (len(text) >= _LOOKED_AT or len(_collapsed(text)) >= MARK_CHARACTERS)


def _collapsed(text: str) -> str:
    return _SPACE.sub(" ", text[:_LOOKED_AT].strip())


def _spelled(raw: Raw) -> Iterable[bytes | Raw]:
    """What of a message is hashed."""
    try:
        message = _message.decode(raw)
        if message.content == _NULL and message.tool_calls == _NULL:
            return _without_marks(raw)
        return (
            message.role.encode("utf-8", "surrogatepass"),
            *_content(message.content),
            message.tool_calls,
            message.tool_call_id.encode("utf-8", "surrogatepass"),
        )
    except _UNREADABLE:
        return (raw,)


def _kind(raw: Raw) -> bytes:
    """The first byte, which says what kind of value it is. Without a copy of it."""
    return bytes(memoryview(raw)[:1])


def _content(content: Raw) -> Iterable[bytes | Raw]:
    if _kind(content) != b"[":
        return (content,)
    return [piece for part in _parts.decode(content) for piece in _part_pieces(part)]


def _part_pieces(raw: Raw) -> Iterable[bytes | Raw]:
    part = _part.decode(raw)
    return (part.text,) if part.text != _NULL else _without_marks(raw)


def _without_marks(raw: Raw) -> Iterable[bytes | Raw]:
    fields = _fields.decode(raw)
    fields.pop("cache_control", None)
    return [piece for name in sorted(fields) for piece in (name.encode("utf-8", "surrogatepass"), fields[name])]


def _call_id(message: _Message) -> str | None:
    """The id of the first tool call: in OpenAI's `tool_calls`, or a part of Anthropic's content."""
    if message.tool_calls != _NULL:
        return next((call.id for call in _named.decode(message.tool_calls) if call.id), None)
    if _kind(message.content) == b"[":
        return next((part.id for part in _named.decode(message.content) if part.type == "tool_use" and part.id), None)
    return None


def _item_call(raw: Raw) -> str | None:
    """The id of a call that is an item of its own, in OpenAI's responses."""
    item = _item.decode(raw)
    return item.call_id if item.type == "function_call" else None


def _texts(content: Raw) -> Iterable[str]:
    if _kind(content) == b'"':
        yield _text.decode(content)
    elif _kind(content) == b"[":
        for raw in _parts.decode(content):
            part = _part.decode(raw)
            if part.text != _NULL:
                yield _text.decode(part.text)
