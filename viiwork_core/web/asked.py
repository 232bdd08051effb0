"""What a request for a resource asks: its query, and a small JSON body."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final, TypeVar
from urllib.parse import parse_qs

import msgspec

from viiwork_core.errors import BodyTooLarge, InvalidRequest, ViiworkError
from viiwork_core.proxy.request import ClientGone, Scope, Send, request_id
from viiwork_core.web.error_pages import send_error, send_json

READ: Final = ("GET", "HEAD")
MAX_BODY: Final = 64 * 1024

T = TypeVar("T")


def query(scope: Scope) -> dict[str, list[str]]:
    """The query's fields. Raises InvalidRequest."""
    try:
        return parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=8)
    except ValueError as error:
        raise InvalidRequest(f"the query cannot be read: {error}") from error


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
        await send_json(send, 200, body, {"content-type": "application/json", "x-request-id": rid})
