"""Servers for addresses that become known while the node runs: they begin when these do, and end with the first one."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, MutableMapping
from typing import Any

import hypercorn.asyncio
import hypercorn.config
import structlog

from viiwork_core.cli.unread import App
from viiwork_core.proxy.request import Receive, Scope, Send

_log = structlog.get_logger("viiwork.node")

Settings = Callable[[socket.socket], hypercorn.config.Config]
"""Hypercorn's, for a server on one socket."""


class LateServers:
    """On the data loop. The application's lifespan is the first server's; it ends after the connections here."""

    def __init__(self, app: App, settings: Settings) -> None:
        self._app, self._settings = app, settings
        self._open, self._stop = asyncio.Event(), asyncio.Event()
        self._servers: list[asyncio.Task[None]] = []

    async def run(self, sockets: asyncio.Queue[socket.socket]) -> None:
        """Serve on each of `sockets`, once the application is open. Until cancelled."""
        await self._open.wait()
        while True:
            one = await sockets.get()
            _log.info("listening", address=one.getsockname()[0])
            server = asyncio.create_task(self._serve(one))
            server.add_done_callback(_failed)
            self._servers.append(server)

    def stop(self) -> None:
        """Take no more connections."""
        self._stop.set()

    async def first(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application for the first server."""
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return

        async def received() -> MutableMapping[str, Any]:
            message = await receive()
            if message["type"] == "lifespan.shutdown":
                self.stop()
                await asyncio.gather(*self._servers, return_exceptions=True)
            return message

        async def sent(message: MutableMapping[str, Any]) -> None:
            await send(message)
            if message["type"] == "lifespan.startup.complete":
                self._open.set()

        await self._app(scope, received, sent)

    async def _serve(self, one: socket.socket) -> None:
        await hypercorn.asyncio.serve(
            self._requests,  # type: ignore[arg-type]  # hypercorn's types want its own dictionaries for ASGI's
            self._settings(one),
            shutdown_trigger=self._stop.wait,
        )

    async def _requests(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        for event in ("startup", "shutdown"):
            await receive()
            await send({"type": f"lifespan.{event}.complete"})


def _failed(server: asyncio.Task[None]) -> None:
    if not server.cancelled() and (error := server.exception()) is not None:
        _log.error("a server failed", exc_info=error)
