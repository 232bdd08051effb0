"""Takes a usage chunk that the core asked for out of a stream whose client did not ask."""

from __future__ import annotations

import msgspec


class _Event(msgspec.Struct):
    choices: list[msgspec.Raw] | None = None
    usage: msgspec.Raw | None = None


_event = msgspec.json.Decoder(_Event)


class UsageChunkFilter:
    """Passes a stream of events through, less those with usage and no choices.

    Only an event that is not complete yet is held back; everything before it goes on at once.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, chunk: bytes) -> bytes:
        """The bytes that may go on now."""
        whole, separator, self._rest = (self._rest + chunk).rpartition(b"\n\n")
        if not separator:
            return b""
        if b'"usage"' not in whole:
            return whole + separator
        return b"".join(event + separator for event in whole.split(separator) if not _only_usage(event))

    def finish(self) -> bytes:
        """What was held back when the stream ended."""
        rest, self._rest = self._rest, b""
        return rest


def _only_usage(event: bytes) -> bool:
    if not event.startswith(b"data:") or b'"usage"' not in event:
        return False
    try:
        parsed = _event.decode(event[5:])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return parsed.choices == [] and parsed.usage is not None
