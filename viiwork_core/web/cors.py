"""CORS: what an answer says to a browser about the pages that may read it. Never with credentials of the browser's."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Any, Final

from viiwork_core.errors import Forbidden
from viiwork_core.proxy.headers import Raw, first
from viiwork_core.proxy.request import Scope, Send, request_id
from viiwork_core.web.error_pages import send_error

METHODS: Final = b"GET, POST, OPTIONS"
MAX_AGE_S: Final = 600
EXPOSED: Final = (
    b"X-Request-Id, Request-Id, X-Viiwork-Node, X-Viiwork-Origin, X-Viiwork-Model, X-Viiwork-Alias, X-Viiwork-Backend, "
    b"X-Viiwork-Queued-Ms, X-Gpu-Backend, Retry-After"
)

_NAMES = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~ ,-]{1,2048}", re.ASCII)
_VARY: Raw = (b"vary", b"Origin")


def shared(send: Send, origin: str, *, allowed: bool) -> Send:
    """`send`, with what a page of `origin` must be told in the answer's headers."""
    lines = [_VARY]
    if allowed:
        lines.append((b"access-control-allow-origin", origin.encode("latin-1")))
        lines.append((b"access-control-expose-headers", EXPOSED))

    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *lines]}
        await send(message)

    return sent


async def preflight(scope: Scope, send: Send, *, allowed: bool) -> None:
    """Answer a browser that asks before it sends a page's request: 204, or 403. Nobody needs a key to ask."""
    rid = request_id(scope["headers"])
    if not allowed:
        error = Forbidden("that page may not use this API", remedy="list its origin in api.cors.allow_origins")
        await send_error(send, error, request_id=rid)
        return
    headers: list[Raw] = [
        (b"access-control-allow-methods", METHODS),
        (b"access-control-max-age", str(MAX_AGE_S).encode()),
        (b"vary", b"Access-Control-Request-Headers"),
        (b"x-request-id", rid.encode()),
    ]
    wanted = first(scope["headers"], b"access-control-request-headers")
    if wanted and _NAMES.fullmatch(wanted):
        headers.append((b"access-control-allow-headers", wanted.encode()))
    if first(scope["headers"], b"access-control-request-private-network") == "true":
        headers.append((b"access-control-allow-private-network", b"true"))
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})
