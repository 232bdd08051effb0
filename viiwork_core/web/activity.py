"""GET /v1/activity/stream: the activity log as server-sent events, for as long as the client listens.

A raw handler: Quart would time it out, and would not tell it that its client left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

import msgspec

from viiwork_core.observe.events import Event, EventLog, Subscriber
from viiwork_core.proxy.headers import Raw
from viiwork_core.proxy.request import Receive, Scope, Send, request_id

KEEP_ALIVE_S: Final = 15.0
"""A comment after so much silence: proxies between cut what is silent for a minute."""

_encode = msgspec.json.Encoder().encode


async def stream(log: EventLog, scope: Scope, receive: Receive, send: Send) -> None:
    """Ends with the log, at once, or when the client leaves. A client that reads too slowly is cut off."""
    await send({"type": "http.response.start", "status": 200, "headers": _headers(request_id(scope["headers"]))})
    if scope["method"] == "HEAD":
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return
    subscriber = log.subscribe()
    telling = asyncio.create_task(_tell(subscriber, send))
    others = [asyncio.create_task(_left(receive)), asyncio.create_task(subscriber.dropped.wait())]
    try:
        await asyncio.wait([telling, *others], return_when=asyncio.FIRST_COMPLETED)
        if telling.done():
            telling.result()
        # Not for one that was dropped: its connection breaks, so that it can tell that it has missed something.
        if telling.done() and not subscriber.dropped.is_set():
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        log.leave(subscriber)
        for task in (telling, *others):
            task.cancel()
        await asyncio.gather(telling, *others, return_exceptions=True)


def _headers(rid: str) -> list[Raw]:
    return [
        (b"content-type", b"text/event-stream"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
        (b"x-request-id", rid.encode("latin-1")),
    ]


async def _tell(subscriber: Subscriber, send: Send) -> None:
    # Something at once, so that whoever waits for the first byte knows that it listens.
    await _send(send, b": activity\n\n" + _text(subscriber.past))
    while True:
        try:
            async with asyncio.timeout(KEEP_ALIVE_S):
                events = await subscriber.batch()
        except TimeoutError:
            await _send(send, b": still here\n\n")
            continue
        if not events:
            return
        await _send(send, _text(events))


def _text(events: Iterable[Event]) -> bytes:
    return b"".join(b"data: " + _encode(event) + b"\n\n" for event in events)


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
