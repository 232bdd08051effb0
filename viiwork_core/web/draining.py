"""/v1/drain: the operator has this node take no new work, and sees how far that has come.

POST    /v1/drain   {"timeout_s"?: 600, "then"?: "stop" | "restart"} -> as GET; at once
GET     /v1/drain   {"node", "state": serving | draining | drained, and unless serving: "seconds", "timeout_s", "then"?,
                     "requests": {"ended", "remaining", "left": [{"request_id", "model", "at"?}]},
                     "sessions": {"moved", "there", "short", "unshared", "remaining",
                                  "left": [{"model", "session", "reason"}]}}
DELETE  /v1/drain   takes requests again -> as GET
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from viiwork_core.proxy.request import Receive, Scope, Send
from viiwork_core.web.asked import READ, answer, decoded, written
from viiwork_core.web.surface import Surface

PATH: Final = "/v1/drain"
METHODS: Final = ("POST", "GET", "HEAD", "DELETE")


class _Wanted(msgspec.Struct, forbid_unknown_fields=True):
    """What may stand in a body."""

    timeout_s: Annotated[float, Meta(ge=0, le=86_400)] = 600.0
    """Seconds that requests and sessions may take; 0: as long as it takes."""

    then: Literal["stop", "restart"] | None = None


async def drain(surface: Surface, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request on PATH."""
    await answer(scope, send, _answer(surface, scope, receive))


async def _answer(surface: Surface, scope: Scope, receive: Receive) -> bytes:
    return msgspec.json.encode(await _told(surface, scope, receive))


async def _told(surface: Surface, scope: Scope, receive: Receive) -> dict[str, Any]:
    if scope["method"] in READ:
        surface.claims.read(scope)
        return surface.drain.told()
    raw = await written(surface.claims, scope, receive)
    if scope["method"] == "DELETE":
        return surface.drain.end()
    wanted = decoded(raw, _Wanted, '{"timeout_s": 600, "then": "stop"}, or nothing') if raw.strip() else _Wanted()
    return surface.drain.begin(wanted.timeout_s, wanted.then)
