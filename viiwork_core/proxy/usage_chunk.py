"""Takes a usage chunk that the core asked for out of a stream whose client did not ask."""

from __future__ import annotations

import re

import msgspec

_BLANK = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
"""The end of an event: two ends of lines, each of any of the three kinds that the format knows."""


_NULL = msgspec.Raw(b"null")


class _Event(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw = _NULL


_event = msgspec.json.Decoder(_Event)


class UsageChunkFilter:
    """Passes a stream of events through, less those with usage and no choices.

    Only an event that is not complete yet is held back; everything before it goes on at once.
    """

    def __init__(self) -> None:
        self._rest = bytearray()
        self._looked = 0
        """Where in the rest the end of an event may still begin."""

    @property
    def ahead(self) -> int:
        """How many of the bytes held back must be looked at again with the next ones."""
        return len(self._rest) - self._looked

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that may go on now."""
        self._rest += chunk
        begin, passed = 0, []
        while found := _BLANK.search(self._rest, self._looked):
            event = bytes(self._rest[begin : found.end()])
            begin = self._looked = found.end()
            if not (b'"usage"' in event and _only_usage(event)):
                passed.append(event)
        del self._rest[:begin]
        self._looked = max(0, len(self._rest) - 3)
        return b"".join(passed)

    def finish(self) -> bytes:
        """What was held back when the stream ended."""
        rest = bytes(self._rest)
        self._rest.clear()
        return b"" if b'"usage"' in rest and _only_usage(rest) else rest


def _only_usage(event: bytes) -> bool:
    data = b"\n".join(line[5:] for line in event.splitlines() if line.startswith(b"data:"))
    try:
        parsed = _event.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return parsed.choices == [] and parsed.usage != _NULL
