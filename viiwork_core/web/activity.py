"""GET /v1/activity/stream: the activity log as server-sent events, for as long as the client listens.

A raw handler: Quart would time it out, and would not tell it that its client left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, TypeVar

import msgspec

from viiwork_core.errors import Unauthorized
from viiwork_core.mesh.followers import LIVE, PATH
from viiwork_core.observe.events import Event, EventLog, Subscriber
from viiwork_core.proxy.headers import Raw
from viiwork_core.proxy.request import Receive, Scope, Send, request_id
from viiwork_core.web.claims import Claims
from viiwork_core.web.error_pages import send_error

STREAM: Final = PATH

KEEP_ALIVE_S: Final = 15.0
"""A comment after so much silence: proxies between cut what is silent for a minute."""

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


async def told(log: EventLog, claims: Claims, scope: Scope, receive: Receive, send: Send) -> None:
    """Anybody may follow; a member is known by its signature, and one with another secret is told so."""
    try:
        member = claims.read(scope)
    except Unauthorized as error:
        await send_error(send, error, request_id=request_id(scope["headers"]))
        return
    await stream(log, scope, receive, send, member)


async def stream(log: EventLog, scope: Scope, receive: Receive, send: Send, member: str | None = None) -> None:
    """Ends with the log, at once, or when the client leaves. A client that reads too slowly is cut off."""
    if await headed(scope, send):
        return
    subscriber = log.subscribe(member)
    try:
        # Something at once, so that whoever waits for the first byte knows that it listens.
        hello = b": activity\n\n" + _text(subscriber.past) + LIVE + b"\n\n"
        await follow(subscriber, hello, _text, receive, send)
    finally:
        log.leave(subscriber)


async def headed(scope: Scope, send: Send) -> bool:
    """Begin a stream of events; True: the client wanted no more than that."""
    await send({"type": "http.response.start", "status": 200, "headers": _headers(request_id(scope["headers"]))})
    if scope["method"] != "HEAD":
        return False
    await send({"type": "http.response.body", "body": b"", "more_body": False})
    return True


async def follow(
    subscriber: Subscriber[T], hello: bytes, text: Callable[[Iterable[T]], bytes], receive: Receive, send: Send
) -> None:
    """Send `hello` and what the subscriber is told, as `text`, until it is over, dropped, or the client leaves."""
    telling = asyncio.create_task(_tell(subscriber, hello, text, send))
    others = [asyncio.create_task(_left(receive)), asyncio.create_task(subscriber.dropped.wait())]
    try:
        await asyncio.wait([telling, *others], return_when=asyncio.FIRST_COMPLETED)
        if telling.done():
            telling.result()
        # Not for one that was dropped: its connection breaks, so that it can tell that it has missed something.
        if telling.done() and not subscriber.dropped.is_set():
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
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


async def _tell(subscriber: Subscriber[T], hello: bytes, text: Callable[[Iterable[T]], bytes], send: Send) -> None:
    await _send(send, hello)
    while True:
        try:
            async with asyncio.timeout(KEEP_ALIVE_S):
                events = await subscriber.batch()
        except TimeoutError:
            await _send(send, b": still here\n\n")
            continue
        if not events:
            return
        await _send(send, text(events))


def _text(events: Iterable[Event]) -> bytes:
    return b"".join(b"data: " + _encode(event) + b"\n\n" for event in events)


async def _send(send: Send, body: bytes) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": True})


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
