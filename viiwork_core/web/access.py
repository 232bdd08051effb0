"""Access: the one door in front of the raw handlers and of Quart's pages, for API keys and for web pages.

Without keys and from programs nothing is looked at but the Origin header, which they do not send. A browser's request
is judged by its Origin and Host (security/origins). With keys, who shows none is answered 401, except

- on paths that tell nothing or prove their callers themselves: see OPEN, and `greetings`;
- a member or the operator of a secured mesh, whose signature is looked at here, or by the handler that has the body;
- a question to a model that the operator of a secured mesh has signed, whose body is read here: it is a small one;
- the viiwork command on the node's machine, which shows the token that the node has left in its state folder.

Where the key of a request is known, its ApiKey stands in the scope under SCOPE_KEY.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from viiwork_core.errors import BodyTooLarge, Forbidden, KeyRefused, ViiworkError
from viiwork_core.mesh.greeting import PATH as GREETING
from viiwork_core.proxy.headers import Raw, first
from viiwork_core.proxy.request import ClientGone, Receive, Scope, Send, read_body, request_id
from viiwork_core.security.keys import SCOPE_KEY, ApiKey, KeyRing
from viiwork_core.security.logins import Guesses, Logins
from viiwork_core.security.operator_token import HEADER as OPERATOR
from viiwork_core.security.origins import Origins, is_same
from viiwork_core.security.signing import AUTH, FORWARDED
from viiwork_core.web.claims import Claims, client_of, is_loopback
from viiwork_core.web.cors import preflight, shared
from viiwork_core.web.error_pages import send_error

Handler = Callable[[Scope, Receive, Send], Awaitable[None]]

LOGIN: Final = "/login"
LOGOUT: Final = "/logout"
STATIC: Final = "/static/"
CHALLENGE: Final = 'Bearer realm="viiwork"'
"""WWW-Authenticate of a 401."""

OPEN: Final = frozenset(("/health", LOGIN, LOGOUT, GREETING))
"""Answered without a key: whether the node is well, the way in, and what a node that cannot join asks."""

PROGRAMS: Final = ("/v1/models", "/v1/model/info", "/api.json", "/health", "/metrics")
"""Read by programs under any name that leads here, such as a proxy's on this machine. They tell of models only."""

_READ: Final = frozenset(("GET", "HEAD", "OPTIONS"))
_MOST_COOKIES: Final = 8192

MOST_SIGNED: Final = 64 * 1024
"""Bytes of a question that is proven at the door. Forwards of any size are proven by who reads them."""


@dataclass(frozen=True)
class Rules:
    """What the door goes by."""

    claims: Claims
    keys: KeyRing
    origins: Origins
    logins: Logins
    guesses: Guesses
    cookie: str
    """Its name. Cookies do not know ports, so that two nodes of one machine need two."""

    operator: str = field(default="", repr=False)
    """The token of the node's machine; empty: none is taken."""


class Access:
    """An ASGI application around another, for requests over HTTP."""

    def __init__(
        self,
        inner: Handler,
        rules: Rules,
        *,
        forwards: Callable[[], frozenset[str]],
        proves: Callable[[str], bool],
        is_page: Callable[[str], bool],
    ) -> None:
        """`forwards`: paths whose handler proves forwards; `proves`: whether a path's handler lets nobody write without
        a proof of the operator's or a member's; `is_page`: whether a path is for people."""
        self._inner = inner
        self._rules = rules
        self._keys = rules.keys
        self._forwards = forwards
        self._proves = proves
        self._is_page = is_page

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        origin = first(scope["headers"], b"origin")
        if origin is None and scope["method"] == "POST" and not self._keys:
            await self._inner(scope, receive, send)  # a program's request to an open API: nothing more for it
            return
        if origin is not None:
            host = first(scope["headers"], b"host")
            allowed = self._rules.origins.shares(origin, host)
            send = shared(send, origin, allowed=allowed)
            if scope["method"] == "OPTIONS" and first(scope["headers"], b"access-control-request-method"):
                await preflight(scope, send, allowed=allowed)
                return
        try:
            self._check_page(scope, origin)
            key: ApiKey | None = None
            if self._keys and self._is_signed_question(scope):
                receive = await self._proven_question(scope, receive)
            elif self._keys:
                key = self._admitted(scope, origin)
        except ClientGone:
            return
        except ViiworkError as error:
            await self._refuse(error, scope, send)
            return
        if key is not None:
            scope[SCOPE_KEY] = key
        await self._inner(scope, receive, send)

    def _check_page(self, scope: Scope, origin: str | None) -> None:
        """Raises Forbidden for what only a page that has no business here would ask."""
        headers, origins = scope["headers"], self._rules.origins
        host = first(headers, b"host")
        # With keys a strange name is of no use: the cookie was not given to it.
        local = not self._keys and is_loopback(client_of(scope))
        if origin is not None and scope["method"] not in _READ and not origins.may_write(origin, host, local=local):
            remedy = "list it in api.cors.allow_origins, if it may"
            raise Forbidden(f"a page of {origin[:200]} may not write here", remedy=remedy)
        if local and scope["method"] in _READ and not _is_for_programs(scope["path"]) and origins.is_strange(host):
            remedy = "call localhost or the node's address, or list the name in api.cors.allow_origins"
            raise Forbidden(f"this node does not know itself as {(host or '')[:200]}", remedy=remedy)

    def _is_signed_question(self, scope: Scope) -> bool:
        """Whether a request for an answer carries a signature and is no forward, which its handler proves."""
        if self._rules.claims.verifier is None or scope["method"] != "POST" or scope["path"] not in self._forwards():
            return False
        headers = scope["headers"]
        return first(headers, AUTH.lower().encode()) is not None and first(headers, FORWARDED.lower().encode()) is None

    async def _proven_question(self, scope: Scope, receive: Receive) -> Receive:
        """Let it through, with its body to be read once more. Raises Unauthorized, BodyTooLarge, ClientGone."""
        try:
            raw = await read_body(scope, receive, MOST_SIGNED)
        except BodyTooLarge:
            what = f"a signed question is over {MOST_SIGNED} bytes"
            raise BodyTooLarge(what, remedy="show an API key with a long one") from None
        await self._rules.claims.write(scope, raw)
        unread: list[MutableMapping[str, Any]] = [{"type": "http.request", "body": raw, "more_body": False}]

        async def again() -> MutableMapping[str, Any]:
            return unread.pop() if unread else await receive()

        return again

    def _admitted(self, scope: Scope, origin: str | None) -> ApiKey | None:
        """The key that a request shows; None: it needs none. Raises KeyRefused, or Unauthorized for a wrong proof."""
        path, method = scope["path"], scope["method"]
        if path in OPEN or path.startswith(STATIC) or self._is_proven(scope):
            return None
        if self._rules.claims.verifier is None and method not in _READ and self._proves(path):
            # Behind a proxy of this machine every client would be this machine's, with whatever key.
            what = "with API keys, only the node's own machine may do that"
            raise Forbidden(what, remedy="use the viiwork command there, as the node's user")
        shown = False
        for token in _tokens(scope["headers"]):
            shown = True
            if (key := self._keys.find(token)) is not None:
                return key
        if (key := self._logged_in(scope, origin)) is not None:
            return key
        what = "the API key is not one of this node's" if shown else "an API key is needed here"
        raise KeyRefused(what, remedy="send Authorization: Bearer KEY; the node's operator gives out keys")

    def _is_proven(self, scope: Scope) -> bool:
        """Whether it comes from a member or the operator, or its handler will find out. Raises Unauthorized."""
        headers, path = scope["headers"], scope["path"]
        token = first(headers, OPERATOR.lower().encode())
        if token and self._rules.operator and hmac.compare_digest(token.encode(), self._rules.operator.encode()):
            return True
        if self._rules.claims.verifier is None:
            return False
        if path in self._forwards():
            return first(headers, FORWARDED.lower().encode()) is not None
        if first(headers, AUTH.lower().encode()) is None:
            return False
        if scope["method"] in _READ:
            return self._rules.claims.read(scope) is not None
        return self._proves(path)

    def _logged_in(self, scope: Scope, origin: str | None) -> ApiKey | None:
        """By the cookie, which a page elsewhere on this machine could have sent along: only for the node's own."""
        if origin is not None and not is_same(origin, first(scope["headers"], b"host")):
            return None
        value = cookie_of(scope["headers"], self._rules.cookie)
        return self._rules.logins.find(value) if value else None

    async def _refuse(self, error: ViiworkError, scope: Scope, send: Send) -> None:
        rid, extra = request_id(scope["headers"]), dict[str, str]()
        if isinstance(error, KeyRefused):
            if scope["method"] in ("GET", "HEAD") and self._is_page(scope["path"]):
                await _lead_to_login(scope, send, rid)
                return
            extra["www-authenticate"] = CHALLENGE
        await send_error(send, error, request_id=rid, extra=extra)


async def _lead_to_login(scope: Scope, send: Send, rid: str) -> None:
    query = scope["query_string"].decode("latin-1")
    wanted = scope["path"] + (f"?{query}" if query else "")
    where = LOGIN if wanted == "/" else f"{LOGIN}?next={quote(wanted, safe='/')}"
    headers = [(b"location", where.encode()), (b"x-request-id", rid.encode()), (b"cache-control", b"no-store")]
    headers.append((b"content-length", b"0"))
    await send({"type": "http.response.start", "status": 303, "headers": headers})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def cookie_of(headers: list[Raw], name: str) -> str | None:
    """A cookie's value; None: it is not there, or the header is no list of cookies."""
    for key, value in headers:
        if key.lower() == b"cookie" and len(value) <= _MOST_COOKIES:
            for part in value.decode("latin-1").split(";"):
                given, _, found = part.strip().partition("=")
                if given == name:
                    return found
    return None


def _tokens(headers: list[Raw]) -> Iterator[str]:
    """The keys that a program shows: OpenAI's way, and Anthropic's."""
    scheme, _, token = (first(headers, b"authorization") or "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        yield token.strip()
    if token := first(headers, b"x-api-key") or "":
        yield token


def _is_for_programs(path: str) -> bool:
    return path.startswith(PROGRAMS)
