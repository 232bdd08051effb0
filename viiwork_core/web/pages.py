"""The dashboards: pages and files that are read once, when the node opens, and are all that a browser needs.

The files lie under a path with their digest in it: whoever has one may keep it, and another version has other paths.
"""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from jinja2 import Template
from quart import Quart, Response
from werkzeug.exceptions import NotFound

from viiwork_core.web.access import Rules
from viiwork_core.web.login import add_login

STATIC: Final = Path(__file__).parent / "static"
PAGES: Final = {"/": "node.html", "/mesh": "mesh.html", "/chat": "chat.html", "/why": "why.html"}

POLICY: Final = (
    "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; object-src 'none'; "
    "require-trusted-types-for 'script'"
)
"""What a page may do. No script and no style stands in a page itself, and nothing is turned from text into elements."""

_GUARDED: Final = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    # Not no-referrer: with that a browser names no Origin for a form of these pages.
    "referrer-policy": "same-origin",
    "x-content-type-options": "nosniff",
}
_TYPES: Final = {".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8"}


@dataclass(frozen=True, slots=True)
class Files:
    """The files of the pages, by name."""

    digest: str
    """Of all of them: a module names another by a path beside its own, so one that changes changes all paths."""

    contents: Mapping[str, bytes]

    @classmethod
    def read(cls, folder: Path = STATIC) -> Files:
        """All of a folder."""
        found = {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}
        digest = hashlib.blake2b(digest_size=8)
        for name, content in found.items():
            digest.update(b"%s %d\n" % (name.encode(), len(content)) + content)
        return cls(digest.hexdigest(), found)

    @property
    def path(self) -> str:
        """Under which they lie."""
        return f"/static/{self.digest}"


def add_pages(app: Quart, rules: Rules, prompts: str = "off") -> None:
    """GET /, /mesh, /chat, /why, /why/ID, /login, and their files. `prompts`: activity.prompts, which they tell."""
    files = Files.read()
    for path, template in PAGES.items():
        app.add_url_rule(path, f"page {path}", _page(app, template, files, rules, prompts), methods=["GET"])
    app.add_url_rule(
        "/why/<path:rid>", "page /why/ID", _page(app, PAGES["/why"], files, rules, prompts), methods=["GET"]
    )
    add_login(app, rules, partial(_template(app, "login.html").render, static=files.path), _GUARDED)

    @app.get("/static/<digest>/<name>")
    async def static(digest: str, name: str) -> Response:
        content = files.contents.get(name)
        if content is None or digest != files.digest:
            raise NotFound
        headers = {**_GUARDED, "cache-control": "public, max-age=31536000, immutable"}
        return Response(content, content_type=_type(name), headers=headers)


def is_page(path: str) -> bool:
    """Whether a person opens that in a browser."""
    return path in PAGES or path.startswith("/why/")


def _page(app: Quart, template: str, files: Files, rules: Rules, prompts: str) -> Callable[..., Response]:
    # Rendered once, and not while the loop runs something else.
    made = _template(app, template)
    free, keyed = (made.render(static=files.path, keyed=keyed, prompts=prompts) for keyed in (False, True))

    def page(**_: str) -> Response:
        headers = {**_GUARDED, "cache-control": "no-cache"}
        return Response(keyed if rules.keys else free, content_type="text/html; charset=utf-8", headers=headers)

    return page


def _template(app: Quart, name: str) -> Template:
    return app.jinja_env.overlay(enable_async=False).get_template(name)


def _type(name: str) -> str:
    kind = _TYPES.get(Path(name).suffix) or mimetypes.guess_type(name)[0]
    return kind or "application/octet-stream"
