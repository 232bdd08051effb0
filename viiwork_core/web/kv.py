"""/v1/kv: the caches that move, as the operator sees them.

GET  /v1/kv             {"node", "store", "models": [...], "sessions": [...], "forgotten"}
POST /v1/kv/forget      {"session": NAME or KEY} -> {"node", "sessions", "replicas", "members": {alive, have, missing}}
                        {"turns": {KEY: TURN}}, from a member -> {"node", "replicas"}; it goes no further
GET  /v1/kv/forgotten   the table of forgotten sessions, for members
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from viiwork_core.errors import BodyTooLarge, InvalidRequest, ViiworkError
from viiwork_core.kvshare.forgotten import Session, TurnNumber
from viiwork_core.proxy.request import ClientGone, Receive, Scope, Send, read_body, request_id
from viiwork_core.web.error_pages import send_error, send_json
from viiwork_core.web.parking import check_type
from viiwork_core.web.surface import KvLedger, Surface

PATH = "/v1/kv"
FORGET = "/v1/kv/forget"
FORGOTTEN = "/v1/kv/forgotten"
PATHS = (PATH, FORGET, FORGOTTEN)
MAX_BODY = 64 * 1024

_JSON = {"content-type": "application/json"}


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """Whom to forget: a session's name or key, or keys with their turns."""

    session: Annotated[str, Meta(min_length=1, max_length=1024)] | msgspec.UnsetType = msgspec.UNSET
    turns: Annotated[dict[Session, TurnNumber], Meta(min_length=1, max_length=256)] | msgspec.UnsetType = msgspec.UNSET


async def kv(surface: Surface, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request on one of PATHS."""
    rid = request_id(scope["headers"])
    try:
        body = await _answer(surface, scope, receive)
    except ClientGone:
        return
    except BodyTooLarge:
        await send_error(send, BodyTooLarge(f"the body is over {MAX_BODY} bytes"), request_id=rid)
        return
    except ViiworkError as error:
        await send_error(send, error, request_id=rid)
        return
    await send_json(send, 200, body, {**_JSON, "x-request-id": rid})


async def _answer(surface: Surface, scope: Scope, receive: Receive) -> bytes:
    if scope["path"] != FORGET:
        surface.claims.read(scope)
        return surface.kv.page() if scope["path"] == FORGOTTEN else msgspec.json.encode(surface.kv.overview())
    raw = await read_body(scope, receive, MAX_BODY)
    await surface.claims.write(scope, raw)
    check_type(scope, raw)
    return msgspec.json.encode(await _forgotten(surface.kv, raw))


async def _forgotten(ledger: KvLedger, raw: bytes) -> dict[str, object]:
    example = 'send {"session": "NAME OR KEY"}'
    try:
        wanted = msgspec.json.decode(raw, type=_Wanted)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not as expected: {error}", remedy=example) from None
    if wanted.session and not wanted.turns:
        return await ledger.forget(wanted.session)
    if wanted.turns and not wanted.session:
        return await ledger.told(wanted.turns)
    raise InvalidRequest("session: is missing", remedy=example)
