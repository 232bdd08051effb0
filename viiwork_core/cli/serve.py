"""viiwork serve: run a node in the foreground."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import click
import hypercorn.asyncio
import hypercorn.config
import structlog
import uvloop
from hypercorn.utils import LifespanFailureError

from viiwork_core.cli.connections import allow_many_connections, close_with_the_client
from viiwork_core.cli.late_servers import LateServers
from viiwork_core.cli.unread import reading_to_the_end
from viiwork_core.config.durations import format_duration
from viiwork_core.config.load import find_config
from viiwork_core.config.paths import config_files
from viiwork_core.config.schema import Config
from viiwork_core.engines.bell import Bell
from viiwork_core.node.addresses import Places, bind
from viiwork_core.node.opening import open_node
from viiwork_core.node.reload import Reload
from viiwork_core.observe.logging import setup_logging
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.options import Resolved, resolve
from viiwork_core.registry.reading import read_config
from viiwork_core.registry.registry import Registry
from viiwork_core.web.app import Application, create_app
from viiwork_core.web.surface import Surface

COLLECT_AFTER = (10_000, 10, 10)
"""Objects, and then rounds, after which the collector of reference cycles looks for some; Python's default is 700."""

_log = structlog.get_logger("viiwork.node")


@click.command()
@click.option("--config", "file", type=click.Path(path_type=Path), help="The configuration; default: the usual places.")
@click.option("--log-json", is_flag=True, help="Log one JSON object a line.")
@click.option("--log-level", default="info", type=click.Choice(["debug", "info", "warning", "error"]))
def serve(file: Path | None, *, log_json: bool, log_level: str) -> None:
    """Run this machine's node until it is stopped (Ctrl-C or SIGTERM). SIGHUP reads the models again."""
    reload = Bell()
    # First of all: as long as nobody hears it, the signal ends the process, and who sends it wants a reload.
    signal.signal(signal.SIGHUP, lambda *_: reload.ring())
    # A file that was found is the one to read again: had it gone by then, the defaults would end all models.
    file = file or find_config(os.environ)
    config = read_config(file, os.environ)
    setup_logging(log_json, log_level, node=config.node.name)
    registry = load_plugins(os.environ)
    _warn(file, config, registry)
    resolved = resolve(config, registry)
    places = bind(config, resolved)
    reloading = Reload(reload, partial(_read, file, registry))
    app = create_app(lambda: open_node(config, resolved, places, os.environ, reloading))
    close_with_the_client(_most_connections(config))
    _collect_less()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(app, config, places, reload))
    finally:
        places.close()
    if app.surface is not None and _departure(app.surface) == "restart":
        _start_again()


def _warn(file: Path | None, config: Config, registry: Registry) -> None:
    """What is odd before anything starts."""
    if file is None:
        places = ", ".join(map(str, config_files(os.environ)))
        _log.warning("no configuration file", looked_at=places, remedy="`viiwork init` writes one; --config names one")
    for warning in config.warnings:
        _log.warning("configuration", reason=warning)
    for record in registry.failed:
        _log.warning("a plugin failed to load", plugin=record.entry_point, reason=record.reason)


def _departure(surface: Surface) -> str | None:
    """What the node was told to do once it was drained; None: it was not told."""
    departure = surface.drain.departure
    return departure.result() if departure.done() else None


def _start_again() -> None:
    """The same command in the same process, so that whoever started it, a service manager or a shell, sees no end."""
    _log.info("starting again")
    # What is ignored stays so until `serve` hears it: a reload in between must not end the process.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606  # this very command, without a shell


def _collect_less() -> None:
    """Let the collector of reference cycles walk over what requests leave, and not over the program again and again.

    A request leaves hardly a cycle, but an account and a conversation that are remembered. With Python's defaults these
    made the collector run so often that it took a twelfth of relaying a short answer.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECT_AFTER)


def _most_connections(config: Config) -> int:
    wanted, possible = config.api.max_connections, allow_many_connections()
    if possible < wanted:
        reason = "the limit of open files (ulimit -Hn) allows no more"
        # Nobody misses connections of a default: most machines have no use for so many.
        tell = _log.warning if "max_connections" in config.api.model_fields_set else _log.info
        tell("fewer connections than api.max_connections", connections=possible, reason=reason)
    return min(wanted, possible)


def _read(file: Path | None, registry: Registry) -> tuple[Config, Resolved]:
    config = read_config(file, os.environ, registry)
    return config, resolve(config, registry)


async def _serve(app: Application, config: Config, places: Places, reload: Bell) -> None:
    _log.info("starting", api=places.url, state_dir=str(config.node.state_dir))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(_tell)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, partial(_stop, loop, stop))
    loop.add_signal_handler(signal.SIGHUP, reload.ring)
    late = LateServers(reading_to_the_end(app), lambda one: _server(config, [one]))
    serving = hypercorn.asyncio.serve(
        late.first,  # type: ignore[arg-type]  # hypercorn's types want its own dictionaries for ASGI's
        _server(config, places.sockets),
        shutdown_trigger=partial(_leave, app, stop, late, config.health.respawn_grace),
    )
    following = asyncio.create_task(late.run(places.later)) if places.later is not None else None
    try:
        await serving
    except LifespanFailureError:
        if app.failure is not None:
            raise app.failure from None
        raise
    finally:
        if following is not None:
            following.cancel()
    _log.info("stopped")
    if app.failure is not None:
        raise app.failure


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Before Python 3.12 asyncio trips over a connection's task that was cancelled, as all are after the grace."""
    if not isinstance(context.get("exception"), asyncio.CancelledError):
        loop.default_exception_handler(context)


def _stop(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """The first signal stops in order. The next has its default effect; what watches the engines then ends them."""
    stop.set()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.remove_signal_handler(number)


async def _leave(app: Application, stop: asyncio.Event, late: LateServers, grace: float) -> None:
    """Returns when the server is to take no more connections: the others have been told by then."""
    await _told_to_stop(app, stop)
    running = f"requests that run may finish within {format_duration(grace)}; a second signal ends them at once"
    _log.info("stopping", reason=running)
    if app.surface is not None:
        await app.surface.leave()
    late.stop()


async def _told_to_stop(app: Application, stop: asyncio.Event) -> None:
    """By a signal, by the end of a drain, or by the node, which then must not run: what it says is raised later."""
    ends: set[asyncio.Future[Any]] = {signalled := asyncio.ensure_future(stop.wait())}
    if app.surface is not None:
        ends |= {asyncio.wrap_future(app.surface.refusal), asyncio.wrap_future(app.surface.drain.departure)}
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    signalled.cancel()
    if app.surface is not None and app.surface.refusal.done():
        app.failure = app.surface.refusal.result()


class _Settings(hypercorn.config.Config):
    """Makes the headers that all answers have, the time among them, once a second."""

    def __init__(self) -> None:
        super().__init__()
        self._made_at = -1
        self._made: list[tuple[bytes, bytes]] = []

    def response_headers(self, protocol: str) -> list[tuple[bytes, bytes]]:
        now = int(time.time())
        if now != self._made_at:
            self._made_at, self._made = now, super().response_headers(protocol)
        return list(self._made)


def _server(config: Config, sockets: Iterable[socket.socket]) -> hypercorn.config.Config:
    """Hypercorn's settings; its defaults cut running streams, pooled peers and large headers."""
    server = _Settings()
    server.bind = [f"fd://{one.detach()}" for one in sockets]
    server.errorlog = logging.getLogger("hypercorn.error")
    server.accesslog = None
    server.graceful_timeout = config.health.respawn_grace
    server.read_timeout = None
    server.keep_alive_timeout = 120
    server.keep_alive_max_requests = 1_000_000
    server.backlog = 2048
    server.h11_max_incomplete_size = 64 * 1024
    server.include_server_header = False
    # The node opens in the lifespan: what a killed run has left may take its time to end.
    server.startup_timeout = 600
    server.shutdown_timeout = 120
    return server
