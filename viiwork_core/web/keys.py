"""/v1/keys: the API keys, read and written by the operator, fetched by members. Never a token, which only clients have.

GET    /v1/keys            {"open", "keys": [INFO]}
GET    /v1/keys?table=1    a page of the whole table, with hashes and revoked names (&after=NAME)
GET    /v1/keys/NAME       INFO with "members"
PUT    /v1/keys/NAME       {"hash", "weight"?, "daily_tokens"?, "models"?} -> {"name", "changed", "key"}
DELETE /v1/keys/NAME       nothing, or {"open": true} for the last one -> the same
"""

from __future__ import annotations

import msgspec

from viiwork_core.errors import MethodNotAllowed, NotFound
from viiwork_core.mesh.key_table import DailyTokens, KeyHash, ModelNames, Weight
from viiwork_core.proxy.request import Receive, Scope, Send
from viiwork_core.security.keys import ApiKey, read_hash
from viiwork_core.web.asked import READ, answer, decoded, query, written
from viiwork_core.web.surface import ApiKeys, Surface

PATH = "/v1/keys"


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a PUT."""

    hash: KeyHash
    weight: Weight = 1
    daily_tokens: DailyTokens = 0
    models: ModelNames = ()


class _Revoked(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a DELETE."""

    open: bool = False


async def keys(surface: Surface, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request on `PATH` or below. A write is on disk when it is answered."""
    await answer(scope, send, _answered(surface, scope, receive))


async def _answered(surface: Surface, scope: Scope, receive: Receive) -> bytes:
    name = _name(scope)
    if scope["method"] in READ:
        surface.claims.private(scope)
        return _told(surface.keys, name, scope)
    raw = await written(surface.claims, scope, receive)
    return await _written(surface.keys, scope["method"], name, raw)


def _name(scope: Scope) -> str:
    """The key that a path names; "": all. Raises NotFound for a path that is none of these, MethodNotAllowed."""
    parts = scope["path"].removeprefix(PATH).split("/")[1:]
    if len(parts) > 1 or "" in parts:
        raise NotFound(f"no such path: {scope['path']}")
    allowed = (*READ, "PUT", "DELETE") if parts else READ
    if scope["method"] not in allowed:
        what = f"{scope['method']} is not allowed on {scope['path']}"
        raise MethodNotAllowed(what, remedy=f"use {', '.join(allowed)}")
    return parts[0] if parts else ""


def _told(known: ApiKeys, name: str, scope: Scope) -> bytes:
    if name:
        return msgspec.json.encode(known.info(name))
    asked = query(scope)
    if asked.get("table") == ["1"]:
        return known.page(asked.get("after", [""])[0])
    return msgspec.json.encode({"open": not known.ring, "keys": known.infos()})


async def _written(known: ApiKeys, method: str, name: str, raw: bytes) -> bytes:
    if method == "PUT":
        example = '{"hash": "sha256:...", "weight": 1, "daily_tokens": 0, "models": []}'
        wanted = decoded(raw, _Wanted, example)
        key = ApiKey(name, read_hash(wanted.hash), wanted.weight, wanted.daily_tokens, wanted.models)
        changed = await known.create(key)
    else:
        asked = decoded(raw if raw.strip() else b"{}", _Revoked, 'nothing, or {"open": true}')
        await known.revoke(name, opens=asked.open)
        changed = True
    return msgspec.json.encode({"name": name, "changed": changed, "key": known.info(name)})
