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
from typing import Annotated, TypeVar
from urllib.parse import parse_qs

import msgspec
from msgspec import Meta

from viiwork_core.errors import BodyTooLarge, InvalidRequest, MethodNotAllowed, NotFound, ViiworkError
from viiwork_core.mesh.alias_text import plain
from viiwork_core.mesh.aliases import MAX_FALLBACKS, ModelName
from viiwork_core.proxy.request import ClientGone, Receive, Scope, Send, read_body, request_id
from viiwork_core.web.error_pages import send_error, send_json
from viiwork_core.web.parking import check_type
from viiwork_core.web.surface import AliasNames, Surface

PATH = "/v1/aliases"
MAX_BODY = 64 * 1024

_READ = ("GET", "HEAD")

T = TypeVar("T")


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
        asked = cls(scope["method"], parts[0] if parts else None, len(parts) == 2, _query(scope))
        allowed = ("POST",) if asked.revert else (*_READ, "PUT", "DELETE") if asked.name is not None else _READ
        if asked.method not in allowed:
            what = f"{asked.method} is not allowed on {scope['path']}"
            raise MethodNotAllowed(what, remedy=f"use {', '.join(allowed)}")
        return asked


def _query(scope: Scope) -> dict[str, list[str]]:
    return parse_qs(scope["query_string"].decode("latin-1"), max_num_fields=8)


async def aliases(surface: Surface, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request on `PATH` or below. A write is on disk when it is answered."""
    rid = request_id(scope["headers"])
    try:
        asked = _read(scope)
        if asked.method in _READ:
            surface.claims.read(scope)
            body = _told(surface.aliases, asked)
        else:
            raw = await read_body(scope, receive, MAX_BODY)
            await surface.claims.write(scope, raw)
            check_type(scope, raw)
            body = await _written(surface.aliases, asked, raw)
    except ClientGone:
        return
    except BodyTooLarge:
        await send_error(send, BodyTooLarge(f"the body is over {MAX_BODY} bytes"), request_id=rid)
        return
    except ViiworkError as error:
        await send_error(send, error, request_id=rid)
        return
    await send_json(send, 200, body, {"content-type": "application/json", "x-request-id": rid})


def _read(scope: Scope) -> _Asked:
    try:
        return _Asked.read(scope)
    except ValueError as error:
        raise InvalidRequest(f"the query cannot be read: {error}") from error


def _told(names: AliasNames, asked: _Asked) -> bytes:
    if asked.name is not None:
        return msgspec.json.encode(names.info(asked.name))
    if asked.query.get("table") == ["1"]:
        return names.page(asked.query.get("after", [""])[0])
    return msgspec.json.encode(names.infos())


async def _written(names: AliasNames, asked: _Asked, raw: bytes) -> bytes:
    name, changed = asked.name or "", True
    if asked.method == "PUT":
        wanted = _decoded(raw, _Wanted, '{"target": "MODEL", "fallbacks": ["MODEL"], "force": false}')
        changed = await names.set(name, wanted.target, wanted.fallbacks, force=wanted.force)
    else:
        _decoded(raw if raw.strip() else b"{}", _Nothing, "nothing, or {}")
        await (names.revert(name) if asked.revert else names.remove(name))
    return msgspec.json.encode({"name": name, "changed": changed, "entry": plain(names.entry(name)[0])})


def _decoded(raw: bytes, kind: type[T], example: str) -> T:
    try:
        return msgspec.json.decode(raw, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is not as expected: {error}", remedy=f"send {example}") from None
