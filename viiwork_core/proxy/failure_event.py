"""The event with which an engine says, in the middle of a stream, that it has failed.

Some engines send `data: [DONE]` after it all the same, so a stream's end alone does not prove that it is whole.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

_LONGEST_LINE = 64 * 1024
_LONGEST_MESSAGE = 200


class FailureEvent:
    """Looks for that event in a stream while it passes by: data with an `error` and without `choices`."""

    def __init__(self) -> None:
        self.message: str | None = None
        """What the engine says of its failure; None: it has not failed."""

        self.leads = False
        """The event is the first one with data in the piece of the stream in which it ends."""

        self._line = b""
        """The beginning of the line that is not complete yet."""

        self._overlong = False

    def feed(self, chunk: bytes) -> bytes:
        """The next bytes of the stream, less what follows that event."""
        carried = len(self._line)
        text = self._line + chunk if carried else chunk
        if b'"error"' in text and (end := self._search(text)) is not None:
            return text[carried:end] + b"\n"
        start = text.rfind(b"\n") + 1
        self._overlong = len(text) - start > _LONGEST_LINE or (self._overlong and not start)
        self._line = b"" if self._overlong else text[start:]
        return chunk

    def finish(self) -> None:
        """The stream has ended, and with it its last line."""
        self._search(self._line + b"\n")

    def _search(self, text: bytes) -> int | None:
        """Where the line of that event ends."""
        leads = True
        for line, end in _lines(text, skip_first=self._overlong):
            if not line.startswith(b"data:"):
                continue
            if (message := _failure(line[5:])) is not None:
                self.message, self.leads = message, leads
                return end
            leads = False
        return None


def _lines(text: bytes, *, skip_first: bool) -> Iterator[tuple[bytes, int]]:
    """Each complete line, and where its end of line ends."""
    start = 0
    while (end := text.find(b"\n", start)) >= 0:
        if not (skip_first and start == 0):
            yield text[start:end], end + 1
        start = end + 1


class _Event(msgspec.Struct):
    error: object = None
    choices: object = None


_event = msgspec.json.Decoder(_Event)


def _failure(data: bytes) -> str | None:
    if b'"error"' not in data:
        return None
    try:
        event = _event.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if not event.error or event.choices is not None:
        return None
    said = event.error.get("message") if isinstance(event.error, dict) else event.error
    return str(said or event.error)[:_LONGEST_MESSAGE]
