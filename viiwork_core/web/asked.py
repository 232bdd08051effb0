"""What a request to the node itself asks: its query, a small JSON body, and whether it may write; and its answer."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, TypeVar
from urllib.parse import parse_qs

import msgspec

from viiwork_core.errors import BodyTooLarge, InvalidRequest, UnsupportedMediaType, ViiworkError
from viiwork_core.proxy.headers import first
from viiwork_core.proxy.request import ClientGone, Receive, Scope, Send, read_body, request_id
from viiwork_core.web.claims import Claims
from viiwork_core.web.error_pages import send_error, send_json

READ: Final = ("GET", "HEAD")
MAX_BODY: Final = 64 * 1024

_JSON: Final = "application/json"

T = TypeVar("T")


def query(scope: Scope) -> dict[str, list[str]]:
    """The query's fields. Raises InvalidRequest."""
    try:
        return parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=8)
    except ValueError as error:
        raise InvalidRequest(f"the query cannot be read: {error}") from error


async def written(claims: Claims, scope: Scope, receive: Receive) -> bytes:
    """The body of a write by somebody who may write here. Raises ViiworkError, and ClientGone."""
    raw = await read_body(scope, receive, MAX_BODY)
    await claims.write(scope, raw)
    _check_type(scope, raw)
    return raw


def _check_type(scope: Scope, raw: bytes) -> None:
    """A page can make a browser send other types to other sites without asking them first, and JSON it cannot."""
    given = first(scope["headers"], b"content-type")
    if given is None and not raw:
        return
    if (given or "").partition(";")[0].strip().lower() != _JSON:
        raise UnsupportedMediaType(f"the body must be {_JSON}", remedy=f"send Content-Type: {_JSON}")


def decoded(raw: bytes, kind: type[T], example: str) -> T:
    """A body. Raises InvalidRequest, with the example."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not as expected: {error}", remedy=f"send {example}") from None


async def answer(scope: Scope, send: Send, work: Awaitable[bytes]) -> None:
    """Send the JSON that `work` comes to, or the error that it raises."""
    rid = request_id(scope["headers"])
    try:
        body = await work
    except ClientGone:
        return
    except BodyTooLarge:
        # The one that is raised names api.max_body, which is not meant here.
        await send_error(send, BodyTooLarge(f"the body is over {MAX_BODY} bytes"), request_id=rid)
    except ViiworkError as error:
        await send_error(send, error, request_id=rid)
    else:
        await send_json(send, 200, body, {"content-type": _JSON, "x-request-id": rid})
