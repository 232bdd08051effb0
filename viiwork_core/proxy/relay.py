"""Bytes through: an upstream's answer to the client, in the same order, pieces and content."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

import aiohttp

from viiwork_core.clock import Clock
from viiwork_core.contracts.engine import StreamEnd, UsageSource, Wire
from viiwork_core.errors import AnswerCut, BackendFailed
from viiwork_core.proxy.engine_errors import LONGEST_ERROR, engine_error
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.failure_event import FailureEvent
from viiwork_core.proxy.headers import Raw
from viiwork_core.proxy.request import InferenceRequest
from viiwork_core.proxy.usage import AnswerEnd
from viiwork_core.proxy.usage_chunk import UsageChunkFilter

PEER = Wire(endpoints=frozenset())
"""A peer's answer passes unchanged: its node has done what its engine needs."""


_FIRST_WITHIN_S = 0.2
"""An engine that answers with its failure and nothing else says so at once."""


def asks_usage(request: InferenceRequest, wire: Wire) -> bool:
    """Whether the core asks for a stream's usage chunk that the client did not ask for."""
    return wire.usage is UsageSource.INCLUDE_USAGE and request.stream and not request.wants_usage


async def relay(
    response: aiohttp.ClientResponse, exchange: Exchange, wire: Wire, clock: Clock, *, extra: Mapping[str, str]
) -> None:
    """Pass an answer on, with `extra` headers of ours, all but its end, which is left to Exchange.finish.

    Raises AnswerCut when the upstream breaks off, also where only a missing `[DONE]` tells, or says in an event that it
    has failed. That event is the last thing that the client gets, unless it would be the first: BackendFailed, where
    the connection's end is no proof and the answer can wait for its first bytes.
    """
    streamed = exchange.streams = _is_stream(exchange.request, response)
    if exchange.announced and not streamed:
        error = engine_error(response.status, await _text(response))
        exchange.status = response.status
        await exchange.fail(error)
        return
    content = response.content
    whole = await _begun(content) if streamed and wire.stream_end is StreamEnd.DONE else b""
    failure = FailureEvent()
    usage_chunk = UsageChunkFilter() if streamed and asks_usage(exchange.request, wire) else None
    # Less or more may go out than came.
    edited = usage_chunk is not None or (streamed and exchange.tells_place)
    headers = _without_length(response.raw_headers) if edited else response.raw_headers
    await exchange.begin(response.status, headers, from_peer=wire is PEER, extra=extra)
    end = AnswerEnd(stream=streamed)
    try:
        # readany gives all that has arrived, so what is buffered goes out in one write and nothing waits for more.
        while whole := whole or await content.readany():
            chunk = failure.feed(whole) if streamed else whole
            exchange.saw(chunk, clock)
            end.feed(chunk)
            passed = usage_chunk.feed(chunk) if usage_chunk else chunk
            if failure.message is not None or content.at_eof():
                exchange.last = passed
                break
            if passed:
                await exchange.pass_on(passed)
            whole = b""
    except (aiohttp.ClientError, OSError) as error:
        exchange.cut(end)
        raise AnswerCut(f"the answer broke off: {error}") from error
    except asyncio.CancelledError:
        exchange.cut(end)
        raise
    if usage_chunk:
        exchange.last += usage_chunk.finish()
    if streamed and (cut := _cut(failure, wire, end)):
        exchange.cut(end)
        await exchange.pass_on(exchange.last)
        raise AnswerCut(cut)
    exchange.read(end)


def _cut(failure: FailureEvent, wire: Wire, end: AnswerEnd) -> str:
    """Why a stream that has ended is not whole, or nothing."""
    failure.finish()
    if failure.message is not None:
        return f"the engine failed: {failure.message}"
    if wire.stream_end is StreamEnd.DONE and not end.done:
        return "the stream ended without [DONE]"
    return ""


async def _begun(content: aiohttp.StreamReader) -> bytes:
    """A stream's first bytes, once they are here; nothing, when the time is up that its head can wait for them.

    Raises BackendFailed when they are the engine's failure: nothing has been sent, so another route may do better.
    """
    first, failure = b"", FailureEvent()
    # A stream that breaks off breaks off at the next question, too. One that waits is to be seen waiting.
    with suppress(aiohttp.ClientError, OSError, TimeoutError):
        first = content.read_nowait()
        # Most engines send their first event with the head, and then nobody needs a timer.
        if not first:
            async with asyncio.timeout(_FIRST_WITHIN_S):
                first = await content.readany()
    failure.feed(first)
    if failure.message is not None and failure.leads:
        raise BackendFailed(f"the engine failed: {failure.message}")
    return first


async def _text(response: aiohttp.ClientResponse) -> bytes:
    """An answer to its end, of which the first LONGEST_ERROR bytes are kept."""
    text = b""
    try:
        async for chunk in response.content.iter_any():
            text += chunk[: LONGEST_ERROR - len(text)]
    except (aiohttp.ClientError, OSError) as error:
        raise AnswerCut(f"the answer broke off: {error}") from error
    return text


def _is_stream(request: InferenceRequest, response: aiohttp.ClientResponse) -> bool:
    """Whether this is a stream of events. An engine may answer a stream's request with one JSON object, or read
    `stream` more freely than this node does; what it says its answer is counts first."""
    if response.status != 200:
        return False
    kind = response.headers.get("Content-Type", "").lower()
    return kind.startswith("text/event-stream") or (request.stream and not kind.startswith("application/json"))


def _without_length(headers: Sequence[Raw]) -> list[Raw]:
    return [(name, value) for name, value in headers if name.lower() != b"content-length"]
