"""The raw paths between members: capacity, asked each second by every member, and replica uploads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from hashlib import blake2b

from viiwork_core.errors import ResumeFrom, ViiworkError
from viiwork_core.mesh.report import encode_report
from viiwork_core.proxy.headers import first
from viiwork_core.proxy.request import ClientGone, Receive, Scope, Send, request_id
from viiwork_core.web.error_pages import send_error, send_json
from viiwork_core.web.surface import Surface

JSON = {"content-type": "application/json"}


async def capacity(surface: Surface, scope: Scope, receive: Receive, send: Send) -> None:
    """GET /v1/capacity: open to all, but a member with another secret is told so.

    The tag of an answer that is still right brings 304 and no body: between two polls mostly nothing has changed.
    """
    del receive
    try:
        surface.claims.read(scope)
    except ViiworkError as error:
        await send_error(send, error, request_id=request_id(scope["headers"]))
        return
    body = encode_report(surface.capacity())
    tag = f'"{blake2b(body, digest_size=12).hexdigest()}"'
    if first(scope["headers"], b"if-none-match") == tag:
        await send({"type": "http.response.start", "status": 304, "headers": [(b"etag", tag.encode())]})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        return
    await send_json(send, 200, body, {**JSON, "etag": tag})


async def replica(surface: Surface, scope: Scope, receive: Receive, send: Send) -> None:
    """PUT /v1/kv/replicas: a sealed stream from a member, a whole file or a delta.

    409 asks for another one: base_missing for the whole file, resume for the rest of it, from the byte that the header
    X-Viiwork-Offset names. A header that begins at the file's end, with no block, asks for that byte.
    """
    rid = request_id(scope["headers"])
    try:
        await surface.take_replica(surface.claims.upload(scope), _chunks(receive))
    except ClientGone:
        return
    except ResumeFrom as part:
        await send_error(send, part, request_id=rid, extra={"x-viiwork-offset": str(part.offset)})
        return
    except ViiworkError as error:
        await send_error(send, error, request_id=rid)
        return
    await send_json(send, 200, b'{"stored":true}', JSON)


async def _chunks(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("the sender left")
        if chunk := message.get("body", b""):
            yield chunk
        if not message.get("more_body", False):
            return
