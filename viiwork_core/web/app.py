"""The ASGI application: raw handlers where it counts, Quart for the rest, one door in front of both."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from functools import partial
from typing import Any, cast

from quart import Quart

from viiwork_core.errors import MethodNotAllowed
from viiwork_core.mesh.greeting import PATH as GREETING
from viiwork_core.proxy.request import Receive, Scope, Send, request_id
from viiwork_core.web import activity, aliases, draining, keys, kv, mesh_stream, parking, peers
from viiwork_core.web.access import Access, Handler
from viiwork_core.web.error_pages import send_error
from viiwork_core.web.openai import read_endpoints
from viiwork_core.web.pages import is_page
from viiwork_core.web.request_ids import is_anthropic, told_twice
from viiwork_core.web.surface import Surface

OpenNode = Callable[[], AbstractAsyncContextManager[Surface]]
"""Opens a node; leaving the context closes it."""

CAPACITY = "/v1/capacity"
REPLICAS = "/v1/kv/replicas"
ACTIVITY_STREAM = activity.STREAM

_METHODS = {
    CAPACITY: ("GET", "HEAD"),
    GREETING: ("GET",),
    ACTIVITY_STREAM: ("GET", "HEAD"),
    mesh_stream.PATH: ("GET", "HEAD"),
    mesh_stream.HERE: ("GET", "HEAD"),
    REPLICAS: ("PUT",),
    kv.PATH: ("GET", "HEAD"),
    kv.FORGOTTEN: ("GET", "HEAD"),
    kv.FORGET: ("POST",),
    parking.DOWN: ("POST",),
    parking.UP: ("POST",),
    draining.PATH: draining.METHODS,
}
"""Of the raw paths; Quart knows its own."""

_TABLES = (aliases.PATH, keys.PATH)
"""What all nodes have, a name below each path."""

_HANDLERS = {
    CAPACITY: peers.capacity,
    REPLICAS: peers.replica,
    parking.DOWN: parking.park,
    parking.UP: parking.park,
    draining.PATH: draining.drain,
    **dict.fromkeys(kv.PATHS, kv.kv),
}
"""Those that all take the same."""


def create_app(open_node: OpenNode) -> Application:
    """An ASGI application whose lifespan opens and closes the node. Any ASGI server may run it."""
    return Application(open_node)


class Application:
    """Routes by path; `surface` is None until the lifespan has started."""

    def __init__(self, open_node: OpenNode) -> None:
        self._open_node = open_node
        self.surface: Surface | None = None
        self.failure: Exception | None = None
        """Why the node did not open."""

        self._access: Access | None = None
        self._pages: Quart | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http" and self._access is not None:
            await self._access(scope, receive, told_twice(send) if is_anthropic(scope["path"]) else send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close"})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        async with AsyncExitStack() as stack:
            await receive()
            try:
                self.surface = await stack.enter_async_context(self._open_node())
                self._pages = read_endpoints(self.surface)
                self._access = _door(self.surface, partial(self._http, self.surface))
            except Exception as error:
                # Whatever it is, the server must stop: some go on without a lifespan when it merely raises.
                self.failure = error
                try:
                    # First: one server looks whether this has ended at the moment when it is told, and never again.
                    await stack.aclose()
                finally:
                    await send({"type": "lifespan.startup.failed", "message": str(error)})
                raise
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def _http(self, surface: Surface, scope: Scope, receive: Receive, send: Send) -> None:
        path, inference = scope["path"], scope["path"] in surface.endpoints()
        allowed = ("POST",) if inference else _METHODS.get(path)
        if allowed is not None and scope["method"] not in allowed:
            error = MethodNotAllowed(f"{scope['method']} is not allowed on {path}", remedy=f"use {allowed[0]}")
            await send_error(send, error, request_id=request_id(scope["headers"]))
        elif inference:
            await surface.inference(scope, receive, send)
        elif (handler := _HANDLERS.get(path)) is not None:
            await handler(surface, scope, receive, send)
        elif path == GREETING:
            await surface.greetings(scope, send)
        elif path == ACTIVITY_STREAM:
            await activity.told(surface.events, surface.claims, scope, receive, send)
        elif path in (mesh_stream.PATH, mesh_stream.HERE):
            looking = surface.outlook.viewers if path == mesh_stream.PATH else surface.outlook.here
            await mesh_stream.stream(looking, scope, receive, send)
        elif path == aliases.PATH or path.startswith(f"{aliases.PATH}/"):
            await aliases.aliases(surface, scope, receive, send)
        elif path == keys.PATH or path.startswith(f"{keys.PATH}/"):
            await keys.keys(surface, scope, receive, send)
        else:
            assert self._pages is not None
            await cast(Any, self._pages)(scope, receive, send)


def _door(surface: Surface, inner: Handler) -> Access:
    return Access(inner, surface.access, forwards=surface.endpoints, proves=_proves, is_page=is_page)


def _proves(path: str) -> bool:
    """Whether a path's handler asks who writes for a proof, in a secured mesh: see Claims."""
    return path in _HANDLERS or path in _TABLES or path.startswith(tuple(f"{table}/" for table in _TABLES))
