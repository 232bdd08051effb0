"""Talks to an engine as viiwork's forward path does, and keeps what the kits look at."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import anyio
import httpx

from viiwork_core.contracts.cache import SessionRef
from viiwork_core.contracts.engine import Address, Spec, UsageSource, Wire
from viiwork_core.testing.tiny_model import WORDS

CHAT = "/v1/chat/completions"
ANSWER_LIMIT = 60.0
"""Seconds that an answer may take."""

Message = dict[str, str]


class Usage(NamedTuple):
    """What an answer says of its tokens."""

    prompt: int
    cached: int
    completion: int


@dataclass(frozen=True)
class Answer:
    """One answer to a chat."""

    status: int
    text: str
    usage: Usage | None
    documents: tuple[dict[str, Any], ...]
    """The body, or the stream's chunks in order."""

    done: bool
    """The stream ended with `data: [DONE]`."""

    chunked: bool
    """The HTTP framing marks the end of the body."""

    raw: str


class BadAnswer(AssertionError):
    """The engine's answer is not what its Wire and the OpenAI interface promise."""


def essay(words: int, *, seed: int) -> str:
    """Plain English words, about one token each for the test models; another seed gives another text from the start."""
    return " ".join(random.Random(seed).choices(WORDS, k=words))


def opening(words: int, *, seed: int) -> list[Message]:
    """A conversation's first request."""
    return [{"role": "user", "content": essay(words, seed=seed)}]


def follow_up(messages: Sequence[Message], answer: Answer, words: int, *, seed: int) -> list[Message]:
    """The next request of the same conversation."""
    said = {"role": "assistant", "content": answer.text}
    return [*messages, said, {"role": "user", "content": essay(words, seed=seed)}]


@dataclass(frozen=True)
class Talk:
    """Requests to one running engine."""

    spec: Spec
    wire: Wire
    address: Address

    async def ask(
        self,
        messages: Sequence[Message],
        session: SessionRef | None = None,
        *,
        stream: bool = False,
        max_tokens: int = 16,
        **extra: Any,
    ) -> Answer:
        """Send one chat, pinned and labelled as the Wire says when a session is given. Any status is an answer.

        Raises BadAnswer for an answer that cannot be read, httpx.HTTPError for one that breaks off.
        """
        body, headers = self._request(messages, session, stream=stream, max_tokens=max_tokens, **extra)
        timeout = httpx.Timeout(ANSWER_LIMIT)
        async with httpx.AsyncClient(timeout=timeout, trust_env=False) as http:
            answer = await http.post(self.address.url + CHAT, json=body, headers=headers)
        return read_answer(answer, stream=stream)

    async def leave(self, messages: Sequence[Message], session: SessionRef, *, within: float, max_tokens: int) -> None:
        """Ask for a stream, and hang up at its first bytes, or after `within` seconds without any."""
        body, headers = self._request(messages, session, stream=True, max_tokens=max_tokens)
        timeout = httpx.Timeout(ANSWER_LIMIT)
        async with httpx.AsyncClient(timeout=timeout, trust_env=False) as http:
            with anyio.move_on_after(within):
                async with http.stream("POST", self.address.url + CHAT, json=body, headers=headers) as answer:
                    async for _ in answer.aiter_raw():
                        return

    def _request(
        self, messages: Sequence[Message], session: SessionRef | None, **fields: Any
    ) -> tuple[dict[str, Any], dict[str, str]]:
        """Body and headers."""
        model = self.wire.model or self.spec.model
        body: dict[str, Any] = {"model": model, "messages": list(messages), "temperature": 0, **fields}
        headers = dict(self.wire.headers)
        if session is not None and self.wire.slot_field is not None:
            body[self.wire.slot_field] = session.slot
        if session is not None and self.wire.session_header is not None:
            headers[self.wire.session_header] = session.key
        return body, headers

    async def turn(self, messages: Sequence[Message], session: SessionRef, max_tokens: int = 16) -> Answer:
        """Send one turn of a session. Raises BadAnswer unless it is answered with text."""
        asks = {"stream_options": {"include_usage": True}} if self.wire.usage is UsageSource.INCLUDE_USAGE else {}
        answer = await self.ask(messages, session, stream=True, max_tokens=max_tokens, **asks)
        if answer.status != httpx.codes.OK or not answer.text:
            raise BadAnswer(f"a chat was answered with {answer.status}: {answer.raw[:300]}")
        return answer


def read_answer(answer: httpx.Response, *, stream: bool) -> Answer:
    """Read a whole HTTP answer. Raises BadAnswer for what is not JSON or not a stream of it."""
    raw = answer.text
    events = [line[5:].strip() for line in raw.splitlines() if line.startswith("data:")]
    streamed = stream and answer.status_code == httpx.codes.OK
    documents = _documents([one for one in events if one != "[DONE]"] if streamed else [raw])
    return Answer(
        status=answer.status_code,
        text="".join(_text(one) for one in documents),
        usage=next((usage for one in reversed(documents) if (usage := read_usage(one))), None),
        documents=documents,
        done=bool(events) and events[-1] == "[DONE]",
        chunked="chunked" in answer.headers.get("transfer-encoding", "") or "content-length" in answer.headers,
        raw=raw,
    )


def read_usage(document: dict[str, Any]) -> Usage | None:
    """The usage in a body or chunk: OpenAI's `usage`, or llama.cpp's `timings`; None: it says nothing."""
    match document:
        case {"usage": {"prompt_tokens": int(prompt), "completion_tokens": int(completion), **more}}:
            details = more.get("prompt_tokens_details")
            cached = details.get("cached_tokens") if isinstance(details, dict) else None
            return Usage(prompt, cached or 0, completion)
        case {"timings": {"prompt_n": int(read), "cache_n": int(cached), "predicted_n": int(completion)}}:
            return Usage(read + cached, cached, completion)
    return None


def _documents(texts: Sequence[str]) -> tuple[dict[str, Any], ...]:
    try:
        documents = [json.loads(text) for text in texts]
    except ValueError as error:
        raise BadAnswer(f"a part of the answer is not JSON: {error}") from error
    if not all(isinstance(one, dict) for one in documents):
        raise BadAnswer("a part of the answer is not a JSON object")
    return tuple(documents)


def _text(document: dict[str, Any]) -> str:
    match document:
        case {"choices": [{"message": {"content": str(text)}}]} | {"choices": [{"delta": {"content": str(text)}}]}:
            return text
    return ""
