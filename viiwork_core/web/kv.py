"""/v1/kv: the caches that move, as the operator sees them.

GET  /v1/kv             {"node", "store", "models": [...], "sessions": [...], "forgotten"}
POST /v1/kv/forget      {"session": NAME or KEY} -> {"node", "sessions", "held", "replicas",
                        "members": {alive, have, missing}}
                        {"turns": {KEY: TURN}}, from a member -> {"node", "replicas"}; it goes no further
GET  /v1/kv/forgotten   the table of forgotten sessions, for members
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from viiwork_core.errors import InvalidRequest
from viiwork_core.kvshare.forgotten import Session, TurnNumber
from viiwork_core.proxy.request import Receive, Scope, Send
from viiwork_core.web.asked import answer, decoded, written
from viiwork_core.web.surface import KvLedger, Surface

PATH = "/v1/kv"
FORGET = "/v1/kv/forget"
FORGOTTEN = "/v1/kv/forgotten"
PATHS = (PATH, FORGET, FORGOTTEN)


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """Whom to forget: a session's name or key, or keys with their turns."""

    session: Annotated[str, Meta(min_length=1, max_length=1024)] | msgspec.UnsetType = msgspec.UNSET
    turns: Annotated[dict[Session, TurnNumber], Meta(min_length=1, max_length=256)] | msgspec.UnsetType = msgspec.UNSET


async def kv(surface: Surface, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request on one of PATHS."""
    await answer(scope, send, _answered(surface, scope, receive))


async def _answered(surface: Surface, scope: Scope, receive: Receive) -> bytes:
    if scope["path"] != FORGET:
        surface.claims.read(scope)
        return surface.kv.page() if scope["path"] == FORGOTTEN else msgspec.json.encode(surface.kv.overview())
    raw = await written(surface.claims, scope, receive)
    return msgspec.json.encode(await _forgotten(surface.kv, raw))


async def _forgotten(ledger: KvLedger, raw: bytes) -> dict[str, object]:
    example = '{"session": "NAME OR KEY"}'
    wanted = decoded(raw, _Wanted, example)
    if wanted.session and not wanted.turns:
        return await _everywhere(ledger, wanted.session)
    if wanted.turns and not wanted.session:
        return await ledger.told(wanted.turns)
    raise InvalidRequest("session: is missing", remedy=f"send {example}")


async def _everywhere(ledger: KvLedger, name: str) -> dict[str, object]:
    """Forget a session. "held": how many of this node's caches, as GET /v1/kv lists them, were its until then."""
    before = ledger.overview()["sessions"]
    answer = await ledger.forget(name)
    return {**answer, "held": sum(one["session"] in answer["sessions"] for one in before)}
