"""How many tokens an answer read, reused and wrote, taken from the end of its bytes as they pass.

llama.cpp says it in `timings` (cache_n, prompt_n, predicted_n), which come unasked; others in `usage`, whose names are
those of OpenAI's chat, of its responses or of Anthropic's messages. A stream of messages tells of its prompt at its
beginning.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec

from viiwork_core.kvshare.turns import Usage

TAIL = 64 * 1024
"""Bytes of an answer's end that are kept. The figures are in its last event or, in a plain answer, somewhere in the
object: a plain answer longer than PLAIN is not read."""

PLAIN = 4 * 1024 * 1024

HEAD = 4 * 1024
"""Bytes of a stream's beginning that are kept."""

MOST_TOKENS = 1 << 40
"""An engine that says more, or less than none, says nothing: sums of such figures would harm all that is counted."""


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None
    input_tokens: int | None = None
    """Of responses the whole prompt, of messages what was neither read from a cache nor written to one."""

    output_tokens: int | None = None
    input_tokens_details: _PromptDetails | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class _Timings(msgspec.Struct):
    cache_n: int | None = None
    prompt_n: int | None = None
    predicted_n: int | None = None


_NULL = msgspec.Raw(b"null")


class _Answer(msgspec.Struct):
    usage: _Usage | None = None
    timings: _Timings | None = None
    response: msgspec.Raw = _NULL
    """Of a stream of responses, in its last event."""

    message: msgspec.Raw = _NULL
    """Of a stream of messages, in its first."""


class _Within(msgspec.Struct):
    usage: _Usage | None = None


_answer = msgspec.json.Decoder(_Answer)
_within = msgspec.json.Decoder(_Within)


class AnswerEnd:
    """Keeps the end of an answer while it passes by."""

    def __init__(self, *, stream: bool) -> None:
        self._stream = stream
        self._limit = TAIL if stream else PLAIN
        self._chunks: deque[bytes] = deque()
        self._size = 0
        self._dropped = 0
        self._head = b""

    def feed(self, chunk: bytes) -> None:
        """See the next bytes of the answer."""
        if self._stream and len(self._head) < HEAD:
            self._head += chunk[: HEAD - len(self._head)]
        self._chunks.append(chunk)
        self._size += len(chunk)
        while self._size - len(self._chunks[0]) > self._limit:
            gone = len(self._chunks.popleft())
            self._size -= gone
            self._dropped += gone

    @property
    def text(self) -> bytes:
        """What is kept."""
        return b"".join(self._chunks)

    @property
    def kept(self) -> int:
        """How many bytes are kept."""
        return self._size

    @property
    def events(self) -> int:
        """How many events a stream has had so far; of a long one an estimate, by the end that is kept."""
        events = self.text.count(b"data:") if self._stream else 0
        return events if not self._dropped else round(events * (self._size + self._dropped) / self._size)

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
        last = next((usage for usage in found if usage is not None), Usage())
        return last if last.prompt is not None else self._with_prompt(last)

    def _with_prompt(self, last: Usage) -> Usage:
        """The usage, completed by what the stream's beginning says of the prompt."""
        found = (_read(data) for data in _data_from_end(self._head) if _tells(data))
        told = next((usage for usage in found if usage is not None and usage.prompt is not None), last)
        return Usage(told.prompt, told.cached, last.completion)


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
        return _possible(Usage(answer.timings.prompt_n + cached, cached, answer.timings.predicted_n))
    usage = answer.usage or _inner(answer.response) or _inner(answer.message)
    return None if usage is None else _possible(_counts(usage))


def _possible(usage: Usage) -> Usage:
    """The usage without impossible figures."""
    prompt, cached, completion = (
        count if count is not None and 0 <= count <= MOST_TOKENS else None
        for count in (usage.prompt, usage.cached, usage.completion)
    )
    return Usage(prompt, cached, completion)


def _inner(raw: msgspec.Raw) -> _Usage | None:
    try:
        return _within.decode(raw).usage
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _counts(usage: _Usage) -> Usage:
    if usage.input_tokens is None and usage.output_tokens is None:
        details = usage.prompt_tokens_details
        return Usage(usage.prompt_tokens, details.cached_tokens if details else None, usage.completion_tokens)
    fresh, read, details = usage.input_tokens, usage.cache_read_input_tokens, usage.input_tokens_details
    prompt = None if fresh is None else fresh + (read or 0) + (usage.cache_creation_input_tokens or 0)
    return Usage(prompt, details.cached_tokens if details and read is None else read, usage.output_tokens)
