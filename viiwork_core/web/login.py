"""The login page: a browser shows an API key once, and holds a cookie for it from then on.

GET  /login?next=PATH    a form, or who is logged in
POST /login?next=PATH    key=KEY -> 303 to PATH with the cookie; 401 for a wrong key, 429 after ten in a minute
POST /logout             ends the login -> 303 to /login

EventSource and links send no Authorization header, so the pages need the cookie. It holds no key: what it holds means
something in this process alone. No script has a part in any of this.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog
from quart import Quart, Response, request

from viiwork_core.errors import KeyRefused
from viiwork_core.proxy.headers import Raw
from viiwork_core.security.logins import LOGIN_S
from viiwork_core.security.origins import is_same
from viiwork_core.web.access import CHALLENGE, LOGIN, LOGOUT, Rules, cookie_of
from viiwork_core.web.claims import client_of

Draw = Callable[..., str]
"""The page's text: with `key`, who is logged in; with `notice`, what went wrong; with `onward`, where to go on."""

_PATH = re.compile(r"/(?![/\\])[!-\[\]-~]{0,2047}", re.ASCII)
"""Of this node: a browser takes // and /\\ for the beginning of another host, and drops tabs and line breaks."""

_LONGEST_KEY: Final = 512

_WRONG: Final = "That is not a key of this node."
_ELSEWHERE: Final = "That came from another page. Try again here."

_log = structlog.get_logger("viiwork.access")


def add_login(app: Quart, rules: Rules, draw: Draw, guarded: Mapping[str, str]) -> None:
    """GET and POST /login, POST /logout. `guarded`: headers of every page."""
    made = _Login(rules, draw, guarded)
    app.add_url_rule(LOGIN, "login", made.form, methods=["GET"])
    app.add_url_rule(LOGIN, "logging in", made.begin, methods=["POST"])
    app.add_url_rule(LOGOUT, "logging out", made.end, methods=["POST"])


@dataclass(frozen=True)
class _Login:
    rules: Rules
    draw: Draw
    guarded: Mapping[str, str]

    def form(self) -> Response:
        """Also for who is logged in: to go on, or to log out."""
        if not self.rules.keys:
            return _onward()
        value = cookie_of(_raw(), self.rules.cookie)
        key = self.rules.logins.find(value) if value else None
        return self._page(key="" if key is None else key.name, onward=_wanted())

    async def begin(self) -> Response:
        if not self.rules.keys:
            return _onward()
        if _is_from_elsewhere():
            return self._page(403, notice=_ELSEWHERE)
        address = client_of(request.scope)  # type: ignore[arg-type]  # Quart's own type for a scope
        # First the form: who sends many at once would have all of them let through before the first is counted.
        shown = (await request.form).get("key", "").strip()[:_LONGEST_KEY]
        if wait := self.rules.guesses.wait_s(address):
            answer = self._page(429, notice=f"Too many wrong keys. Wait {wait} seconds.")
            answer.headers["retry-after"] = str(wait)
            return answer
        key = self.rules.keys.find(shown)
        if key is None:
            if self.rules.guesses.failed(address):
                _log.warning("a login was refused", address=address, reason="a wrong API key")
            return self._page(401, notice=_WRONG)
        answer = _onward()
        self._set_cookie(answer, self.rules.logins.begin(key), LOGIN_S)
        return answer

    def end(self) -> Response:
        if _is_from_elsewhere():
            return self._page(403, notice=_ELSEWHERE)
        if value := cookie_of(_raw(), self.rules.cookie):
            self.rules.logins.end(value)
        answer = _onward(LOGIN)
        self._set_cookie(answer, "", 0)
        return answer

    def _page(self, status: int = 200, **more: str) -> Response:
        headers = {**self.guarded, "cache-control": "no-store"}
        if status == KeyRefused.status:
            headers["www-authenticate"] = CHALLENGE
        return Response(self.draw(**more), status, headers, content_type="text/html; charset=utf-8")

    def _set_cookie(self, answer: Response, value: str, life_s: int) -> None:
        # Behind a proxy that speaks https, only the browser's Origin tells of it.
        secure = request.scheme == "https" or request.headers.get("origin", "").startswith("https://")
        answer.set_cookie(self.rules.cookie, value, life_s, path="/", secure=secure, httponly=True, samesite="Strict")


def _onward(to: str | None = None) -> Response:
    return Response(b"", 303, {"location": to or _wanted(), "cache-control": "no-store"})


def _wanted() -> str:
    return own_path(request.args.get("next"))


def own_path(wanted: str | None) -> str:
    """Where to go after a login: a path of this node, never another place."""
    return wanted if wanted and _PATH.fullmatch(wanted) and not wanted.startswith((LOGIN, LOGOUT)) else "/"


def _is_from_elsewhere() -> bool:
    """Whether a page that is not this node's has sent the form: a browser says so in one of two headers."""
    origin = request.headers.get("origin")
    if origin is not None:
        return not is_same(origin, request.headers.get("host"))
    return request.headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")


def _raw() -> list[Raw]:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request.headers.items()]
