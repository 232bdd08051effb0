"""POST /v1/models/down and /v1/models/up: the operator takes models down, and starts them again."""

from __future__ import annotations

import msgspec

from viiwork_core.errors import InvalidRequest
from viiwork_core.proxy.request import Receive, Scope, Send
from viiwork_core.web.asked import answer, decoded, written
from viiwork_core.web.surface import Surface

DOWN = "/v1/models/down"
UP = "/v1/models/up"


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """What may stand in a body. Left out and wrong are different: a misspelt key must not take everything down."""

    models: list[str] | msgspec.UnsetType = msgspec.UNSET


async def park(surface: Surface, scope: Scope, receive: Receive, send: Send) -> None:
    """Answers {node, models: [{name, parked, changed}]}, as soon as it is noted: running requests may finish."""
    await answer(scope, send, _parked(surface, scope, receive))


async def _parked(surface: Surface, scope: Scope, receive: Receive) -> bytes:
    down = scope["path"] == DOWN
    changes = await surface.park(_names(await written(surface.claims, scope, receive)), down)
    models = [{"name": name, "parked": down, "changed": changed} for name, changed in changes.items()]
    return msgspec.json.encode({"node": surface.node, "models": models})


def _names(raw: bytes) -> tuple[str, ...] | None:
    """The models meant; None: all."""
    wanted = decoded(raw, _Wanted, '{"models": ["NAME"]}') if raw.strip() else _Wanted()
    if wanted.models is msgspec.UNSET:
        return None
    if not wanted.models:
        raise InvalidRequest("models: is empty", remedy="name models, or leave it out for all of them")
    return tuple(wanted.models)
