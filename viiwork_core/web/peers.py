"""The raw paths between members: capacity, asked each second by every member, and replica uploads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from hashlib import blake2b

from viiwork_core.errors import ResumeFrom, UpgradeUnsupported, ViiworkError
from viiwork_core.kvshare.upgraded import OFFSET, PROTOCOL, answer
from viiwork_core.mesh.report import encode_report
from viiwork_core.proxy.headers import first
from viiwork_core.proxy.request import UPGRADE, ClientGone, Receive, Scope, Send, Upgrade, request_id
from viiwork_core.web.error_pages import error_answer, send_error, send_json, whole_answer
from viiwork_core.web.surface import Surface

JSON = {"content-type": "application/json"}
STORED = b'{"stored":true}'


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

    It is the request's body, or comes after an answer 101 to `Upgrade: viiwork-replica`, where the server can do that
    and there is no body, and is answered in HTTP once more. 409 asks for another one: base_missing for the whole file,
    resume for the rest of it, from the byte that the header X-Viiwork-Offset names. A header that begins at the file's
    end asks for that byte.
    """
    rid = request_id(scope["headers"])
    try:
        origin = surface.claims.upload(scope)
        if _leaves_http(scope):
            await _upgraded(surface, origin, scope)
            return
        await surface.take_replica(origin, _chunks(receive))
    except ClientGone:
        return
    except ViiworkError as error:
        await send_error(send, error, request_id=rid, extra=_offset(error))
        return
    await send_json(send, 200, STORED, JSON)


def _leaves_http(scope: Scope) -> bool:
    """Whether a request asks for it and may. In HTTP/1.0 and with a body there is nothing to it but the body."""
    headers = scope["headers"]
    asks = (first(headers, b"upgrade") or "").lower() == PROTOCOL
    body = first(headers, b"content-length") not in (None, "0") or first(headers, b"transfer-encoding") is not None
    return asks and not body and scope["http_version"] == "1.1"


async def _upgraded(surface: Surface, origin: str, scope: Scope) -> None:
    upgrade: Upgrade | None = scope.get("state", {}).get(UPGRADE)
    if upgrade is None:
        raise UpgradeUnsupported("this server cannot leave HTTP", remedy="send the stream as the body")
    try:
        connection = await upgrade()
    except OSError:
        return  # the sender left
    with connection:
        try:
            await surface.take_replica(origin, connection)
        except OSError:
            return
        except ViiworkError as error:
            await answer(connection, error_answer(error, _offset(error)))
        else:
            await answer(connection, whole_answer(200, STORED, JSON))


def _offset(error: ViiworkError) -> dict[str, str]:
    """The header that a refusal has, in lower case."""
    return {OFFSET.lower(): str(error.offset)} if isinstance(error, ResumeFrom) else {}


async def _chunks(receive: Receive) -> AsyncIterator[bytes]:
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone("the sender left")
        if chunk := message.get("body", b""):
            yield chunk
        if not message.get("more_body", False):
            return
