"""POST /v1/models/down and /v1/models/up: the operator takes models down, and starts them again."""

from __future__ import annotations

import msgspec

from viiwork_core.errors import BodyTooLarge, InvalidRequest, UnsupportedMediaType, ViiworkError
from viiwork_core.proxy.headers import first
from viiwork_core.proxy.request import ClientGone, Receive, Scope, Send, read_body, request_id
from viiwork_core.web.error_pages import send_error, send_json
from viiwork_core.web.surface import Surface

DOWN = "/v1/models/down"
UP = "/v1/models/up"
MAX_BODY = 64 * 1024

_JSON = "application/json"


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """What may stand in a body. Left out and wrong are different: a misspelt key must not take everything down."""

    models: list[str] | msgspec.UnsetType = msgspec.UNSET


async def park(surface: Surface, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers {node, models: [{name, parked, changed}]}, as soon as it is noted: running requests may finish."""
    rid = request_id(scope["headers"])
    down = scope["path"] == DOWN
    try:
        raw = await read_body(scope, receive, MAX_BODY)
        await surface.claims.write(scope, raw)
        check_type(scope, raw)
        changes = await surface.park(_names(raw), down)
    except ClientGone:
        return
    except BodyTooLarge:
        error = BodyTooLarge(f"the body is over {MAX_BODY} bytes")
        await send_error(send, error, request_id=rid)
        return
    except ViiworkError as error:
        await send_error(send, error, request_id=rid)
        return
    models = [{"name": name, "parked": down, "changed": changed} for name, changed in changes.items()]
    body = msgspec.json.encode({"node": surface.node, "models": models})
    await send_json(send, 200, body, {"content-type": _JSON, "x-request-id": rid})


def check_type(scope: Scope, raw: bytes) -> None:
    """A page can make a browser send other types to other sites without asking them first, and JSON it cannot."""
    given = first(scope["headers"], b"content-type")
    if given is None and not raw:
        return
    if (given or "").partition(";")[0].strip().lower() != _JSON:
        raise UnsupportedMediaType(f"the body must be {_JSON}", remedy=f"send Content-Type: {_JSON}")


def _names(raw: bytes) -> tuple[str, ...] | None:
    """The models meant; None: all."""
    if not raw.strip():
        return None
    try:
        wanted = msgspec.json.decode(raw, type=_Wanted)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"the body is not as expected: {error}", remedy='send {"models": ["NAME"]}') from None
    if wanted.models is msgspec.UNSET:
        return None
    if not wanted.models:
        raise InvalidRequest("models: is empty", remedy="name models, or leave it out for all of them")
    return tuple(wanted.models)
