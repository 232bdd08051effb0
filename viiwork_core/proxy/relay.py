"""Bytes through: an upstream's answer to the client, in the same order, pieces and content."""

from __future__ import annotations

import aiohttp

from viiwork_core.clock import Clock
from viiwork_core.contracts.engine import StreamEnd, UsageSource, Wire
from viiwork_core.errors import AnswerCut
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.usage import AnswerEnd
from viiwork_core.proxy.usage_chunk import UsageChunkFilter

PEER = Wire(endpoints=frozenset())
"""A peer's answer passes unchanged: its node has done what its engine needs."""


async def relay(response: aiohttp.ClientResponse, exchange: Exchange, wire: Wire, clock: Clock) -> None:
    """Pass the body on and end the answer.

    Raises AnswerCut when the upstream breaks off, also where only a missing `[DONE]` tells; then nothing is ended.
    """
    request = exchange.request
    streamed = request.stream and response.status == 200
    end = AnswerEnd(stream=streamed)
    injected = streamed and wire.usage is UsageSource.INCLUDE_USAGE and not request.wants_usage
    usage_chunk = UsageChunkFilter() if injected else None
    began = clock.monotonic()
    try:
        # iter_any gives all that has arrived, so what is buffered goes out in one write and nothing waits for more.
        async for chunk in response.content.iter_any():
            if exchange.first_byte_s is None:
                exchange.first_byte_s = clock.monotonic() - began
            end.feed(chunk)
            if passed := usage_chunk.feed(chunk) if usage_chunk else chunk:
                await exchange.pass_on(passed)
    except (aiohttp.ClientError, OSError) as error:
        raise AnswerCut(f"the answer broke off: {error}") from error
    if usage_chunk and (rest := usage_chunk.finish()):
        await exchange.pass_on(rest)
    if streamed and wire.stream_end is StreamEnd.DONE and not end.done:
        raise AnswerCut("the stream ended without [DONE]")
    exchange.usage = end.usage()
    await exchange.finish()
