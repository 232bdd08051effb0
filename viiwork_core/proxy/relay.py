"""Bytes through: an upstream's answer to the client, in the same order, pieces and content."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import aiohttp

from viiwork_core.clock import Clock
from viiwork_core.contracts.engine import StreamEnd, UsageSource, Wire
from viiwork_core.errors import AnswerCut
from viiwork_core.proxy.engine_errors import LONGEST_ERROR, engine_error
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.headers import Raw
from viiwork_core.proxy.request import InferenceRequest
from viiwork_core.proxy.usage import AnswerEnd
from viiwork_core.proxy.usage_chunk import UsageChunkFilter

PEER = Wire(endpoints=frozenset())
"""A peer's answer passes unchanged: its node has done what its engine needs."""


def asks_usage(request: InferenceRequest, wire: Wire) -> bool:
    """Whether the core asks for a stream's usage chunk that the client did not ask for."""
    return wire.usage is UsageSource.INCLUDE_USAGE and request.stream and not request.wants_usage


async def relay(
    response: aiohttp.ClientResponse, exchange: Exchange, wire: Wire, clock: Clock, *, extra: Mapping[str, str]
) -> None:
    """Pass an answer on, with `extra` headers of ours, all but its end, which is left to Exchange.finish.

    Raises AnswerCut when the upstream breaks off, also where only a missing `[DONE]` tells.
    """
    streamed = exchange.streams = _is_stream(exchange.request, response)
    if exchange.announced and not streamed:
        error = engine_error(response.status, await _text(response))
        exchange.status = response.status
        await exchange.fail(error)
        return
    usage_chunk = UsageChunkFilter() if streamed and asks_usage(exchange.request, wire) else None
    headers = _without_length(response.raw_headers) if usage_chunk else response.raw_headers
    await exchange.begin(response.status, headers, from_peer=wire is PEER, extra=extra)
    end = AnswerEnd(stream=streamed)
    try:
        # iter_any gives all that has arrived, so what is buffered goes out in one write and nothing waits for more.
        async for chunk in response.content.iter_any():
            if exchange.first_byte_at is None:
                exchange.first_byte_at = clock.monotonic()
            end.feed(chunk)
            passed = usage_chunk.feed(chunk) if usage_chunk else chunk
            if response.content.at_eof():
                exchange.last = passed
            elif passed:
                await exchange.pass_on(passed)
    except (aiohttp.ClientError, OSError) as error:
        raise AnswerCut(f"the answer broke off: {error}") from error
    if usage_chunk:
        exchange.last += usage_chunk.finish()
    if streamed and wire.stream_end is StreamEnd.DONE and not end.done:
        await exchange.pass_on(exchange.last)
        raise AnswerCut("the stream ended without [DONE]")
    exchange.usage = end.usage()


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
