"""From a request that is over to what its trace is told of it."""

from __future__ import annotations

from viiwork_core.observe.traces import Chosen, Ending
from viiwork_core.proxy.exchange import Exchange


def unread(path: str, status: int, seconds: float) -> Ending:
    """Of a request that was refused, or left, before it could be read."""
    return Ending(path, status, seconds)


def ending(exchange: Exchange, status: int, seconds: float, *, hop: bool, known: bool, cut: bool) -> Ending:
    """Of one that was read. `known`: some node serves its model; names that clients make up are not told."""
    request, ticket, usage = exchange.request, exchange.ticket, exchange.usage
    placed = exchange.backend is not None or exchange.peer is not None
    return Ending(
        request.path,
        status,
        seconds,
        cut=cut,
        model=request.query.model if known else "",
        alias=request.alias,
        stream=request.stream,
        hop=hop,
        backend=exchange.backend,
        peer=exchange.peer,
        queued_s=exchange.queued_s,
        granted_at=exchange.granted_at if placed else None,
        first_byte_at=exchange.first_byte_at,
        first_token_at=exchange.first_token_at,
        prompt_tokens=usage.prompt,
        cached_tokens=usage.cached,
        completion_tokens=usage.completion,
        session=str(request.found),
        choices=[Chosen(one.at, one.chosen, one.by, len(one.candidates)) for one in (ticket.choices if ticket else ())],
    )
