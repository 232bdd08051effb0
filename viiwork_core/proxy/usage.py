"""How many tokens an answer read, reused and wrote, taken from the end of its bytes as they pass.

llama.cpp says it in `timings` (cache_n, prompt_n, predicted_n), which come unasked; others in OpenAI's `usage`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec

from viiwork_core.kvshare.turns import Usage

TAIL = 64 * 1024
"""Bytes of an answer's end that are kept. The figures stand in its last event or, in a plain answer, somewhere in the
object: a plain answer longer than PLAIN is not read."""

PLAIN = 4 * 1024 * 1024


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None


class _Timings(msgspec.Struct):
    cache_n: int | None = None
    prompt_n: int | None = None
    predicted_n: int | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None
    timings: _Timings | None = None


_answer = msgspec.json.Decoder(_Answer)


class AnswerEnd:
    """Keeps the end of an answer while it passes by."""

    def __init__(self, *, stream: bool) -> None:
        self._stream = stream
        self._limit = TAIL if stream else PLAIN
        self._chunks: deque[bytes] = deque()
        self._size = 0

    def feed(self, chunk: bytes) -> None:
        """See the next bytes of the answer."""
        self._chunks.append(chunk)
        self._size += len(chunk)
        while self._size - len(self._chunks[0]) > self._limit:
            self._size -= len(self._chunks.popleft())

    @property
    def text(self) -> bytes:
        """What is kept."""
        return b"".join(self._chunks)

    @property
    def kept(self) -> int:
        """How many bytes are kept."""
        return self._size

    @property
    def done(self) -> bool:
        """Whether the stream's last line of data is `data: [DONE]`. A model may well write that inside a line."""
        return next(_data_from_end(self.text), b"") == b"[DONE]"

    def usage(self) -> Usage:
        """The counts, as far as the engine gave them."""
        text = self.text
        if not self._stream:
            return _read(text) or Usage()
        if not _tells(text):
            return Usage()
        found = (_read(data) for data in _data_from_end(text) if _tells(data))
        return next((usage for usage in found if usage is not None), Usage())


def _tells(text: bytes) -> bool:
    return b'"usage"' in text or b'"timings"' in text


def _data_from_end(text: bytes) -> Iterator[bytes]:
    """What the `data:` lines carry, the last one first. Reads no further back than it is asked to."""
    start = len(text)
    while (start := text.rfind(b"data:", 0, start)) >= 0:
        if start == 0 or text[start - 1] in b"\r\n":
            end = text.find(b"\n", start)
            line = text[start + 5 : end if end >= 0 else len(text)]
            yield line.partition(b"\r")[0].strip()


def _read(text: bytes) -> Usage | None:
    try:
        answer = _answer.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if answer.timings is not None and answer.timings.prompt_n is not None:
        cached = answer.timings.cache_n or 0
        return Usage(answer.timings.prompt_n + cached, cached, answer.timings.predicted_n)
    if answer.usage is not None:
        details = answer.usage.prompt_tokens_details
        return Usage(
            answer.usage.prompt_tokens, details.cached_tokens if details else None, answer.usage.completion_tokens
        )
    return None
