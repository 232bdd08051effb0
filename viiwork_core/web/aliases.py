"""/v1/aliases: the names that the mesh knows models by, read by anyone, written by the operator, fetched by members.

GET    /v1/aliases               {"digest", "aliases": [INFO]}
GET    /v1/aliases?table=1       a page of the whole table, histories and deleted names included (&after=NAME)
GET    /v1/aliases/NAME          INFO with "history" and "members"
PUT    /v1/aliases/NAME          {"target", "fallbacks"?, "force"?} -> {"name", "changed", "entry"}
DELETE /v1/aliases/NAME          -> the same
POST   /v1/aliases/NAME/revert   -> the same
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import msgspec
from msgspec import Meta

from viiwork_core.errors import MethodNotAllowed, NotFound
from viiwork_core.mesh.alias_table import MAX_FALLBACKS, ModelName
from viiwork_core.mesh.table_text import plain
from viiwork_core.proxy.request import Receive, Scope, Send
from viiwork_core.web.asked import READ, answer, decoded, query, written
from viiwork_core.web.surface import AliasNames, Surface

PATH = "/v1/aliases"


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a PUT."""

    target: ModelName
    fallbacks: Annotated[list[ModelName], Meta(max_length=MAX_FALLBACKS)] = msgspec.field(default_factory=list)
    force: bool = False


class _Nothing(msgspec.Struct, forbid_unknown_fields=True):
    """The body of other writes."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What a request's path, method and query say."""

    method: str
    name: str | None
    revert: bool
    query: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, scope: Scope) -> _Asked:
        """Raises NotFound for a path that is none of these, MethodNotAllowed."""
        parts = scope["path"].removeprefix(PATH).split("/")[1:]
        if len(parts) > 2 or "" in parts or parts[1:] not in ([], ["revert"]):
            raise NotFound(f"no such path: {scope['path']}")
        asked = cls(scope["method"], parts[0] if parts else None, len(parts) == 2, query(scope))
        allowed = ("POST",) if asked.revert else (*READ, "PUT", "DELETE") if asked.name is not None else READ
        if asked.method not in allowed:
            what = f"{asked.method} is not allowed on {scope['path']}"
            raise MethodNotAllowed(what, remedy=f"use {', '.join(allowed)}")
        return asked


async def aliases(surface: Surface, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request on `PATH` or below. A write is on disk when it is answered."""
    await answer(scope, send, _answered(surface, scope, receive))


async def _answered(surface: Surface, scope: Scope, receive: Receive) -> bytes:
    asked = _Asked.read(scope)
    if asked.method in READ:
        surface.claims.read(scope)
        return _told(surface.aliases, asked)
    raw = await written(surface.claims, scope, receive)
    return await _written(surface.aliases, asked, raw)


def _told(names: AliasNames, asked: _Asked) -> bytes:
    if asked.name is not None:
        return msgspec.json.encode(names.info(asked.name))
    if asked.query.get("table") == ["1"]:
        return names.page(asked.query.get("after", [""])[0])
    return msgspec.json.encode(names.infos())


async def _written(names: AliasNames, asked: _Asked, raw: bytes) -> bytes:
    name, changed = asked.name or "", True
    if asked.method == "PUT":
        wanted = decoded(raw, _Wanted, '{"target": "MODEL", "fallbacks": ["MODEL"], "force": false}')
        changed = await names.set(name, wanted.target, wanted.fallbacks, force=wanted.force)
    else:
        decoded(raw if raw.strip() else b"{}", _Nothing, "nothing, or {}")
        await (names.revert(name) if asked.revert else names.remove(name))
    return msgspec.json.encode({"name": name, "changed": changed, "entry": plain(names.entry(name)[0])})
