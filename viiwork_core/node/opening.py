"""Opening a node: every part is started here, in order, and stopped in the reverse one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from viiwork_core.clock import SystemClock
from viiwork_core.config.schema import Config
from viiwork_core.engines.commands import Commands
from viiwork_core.engines.control import ControlLoop, ended
from viiwork_core.engines.fleet import Fleet
from viiwork_core.engines.gpus.inventory import Inventory, detect
from viiwork_core.engines.leftovers import end_leftovers
from viiwork_core.kvshare.caches import Caches
from viiwork_core.node.addresses import Places
from viiwork_core.node.admission import secret_of
from viiwork_core.node.background import Background
from viiwork_core.node.bridge import Bridge
from viiwork_core.node.following import Following
from viiwork_core.node.identity import identity_file, new_node_id
from viiwork_core.node.lock import locked
from viiwork_core.node.meshwork import Mesh, open_mesh
from viiwork_core.node.parts import Parts
from viiwork_core.node.reload import Reload
from viiwork_core.node.sharing import open_sharing
from viiwork_core.node.surface import surface_of
from viiwork_core.node.targets import Targets
from viiwork_core.proxy.execute import Executor
from viiwork_core.proxy.upstream import Upstream
from viiwork_core.registry.options import Resolved
from viiwork_core.web.surface import Surface

GRACE = 10.0
"""Seconds that saves and sends may take when the node stops."""


@asynccontextmanager
async def open_node(
    config: Config, resolved: Resolved, places: Places, environ: Mapping[str, str], reload: Reload | None = None
) -> AsyncIterator[Surface]:
    """Open a node whose API listens at `places`, and close it in order: mesh, background work, engines.

    `reload` is heard from the moment that the node is open. None: its models stay as they are.
    Raises ConfigError for what cannot be started with.
    """
    secret = secret_of(config, environ) if places.in_mesh else None
    state_dir = config.node.state_dir
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    commands = Commands(new_node_id())
    # Never on uvloop: it closes a pipe's descriptor twice, and the second time it may be another thread's.
    vendor = await asyncio.to_thread(asyncio.run, detect(config.gpu.vendor, commands.run))
    cards = Inventory(vendor, commands.run, clock=SystemClock())
    parts = Parts(config, resolved, places, secret, commands, cards)
    async with AsyncExitStack() as stack:
        yield await _open(parts, stack, reload)


async def _open(parts: Parts, stack: AsyncExitStack, reload: Reload | None) -> Surface:
    """Start everything; `stack` stops it."""
    await _take_folder(parts, stack)
    await _remember(parts)
    control = await stack.enter_async_context(ControlLoop())
    fleet = _start_fleet(parts, control, stack)
    background = await stack.enter_async_context(Background(GRACE))
    upstream = await stack.enter_async_context(Upstream())
    mesh = await _enter_mesh(parts, control, background, stack)
    caches = parts.caches = await _share(parts, control, background, mesh)
    _follow(parts, control, background, mesh, caches, ends=reload is not None)
    # While the links to other members and the engines are still there.
    stack.push_async_callback(background.settle)
    stack.enter_context(identity_file(parts.config, parts.node_id, parts.places.url))
    stack.callback(parts.events.close)
    parts.events.emit("system", f"{parts.node} is up")
    following = Following(parts.models, caches, fleet, control, background, parts.learning.speeds.follow)
    if reload is not None:
        background.serve(reload.run(parts.config, following.replace, parts.keyring.reload))
    executor = _executor(parts, upstream, caches, background, fleet)
    return surface_of(parts, executor, mesh, caches, following, background)


async def _take_folder(parts: Parts, stack: AsyncExitStack) -> None:
    """The state folder is this run's alone from now on, and nothing of an earlier run is left."""
    lock = stack.enter_context(locked(parts.config.node.state_dir))
    if lock.before is not None:
        await end_leftovers(lock.before)
    lock.sign(parts.node_id)


async def _remember(parts: Parts) -> None:
    """Read what earlier runs have left. Raises ConfigError."""
    await parts.naming.open()
    await parts.keyring.open()
    await parts.ledger.open()
    parts.learning.speeds.open()


def _start_fleet(parts: Parts, control: ControlLoop, stack: AsyncExitStack) -> Fleet:
    control.start(parts.cards.run())
    bridge = Bridge(parts.book, parts.news.saw, parts.cards)
    fleet = bridge.fleet(parts.models.backends, parts.config.health, node_id=parts.node_id, clock=parts.clock)
    stack.push_async_callback(ended, control.start(fleet.run()))
    return fleet


async def _enter_mesh(parts: Parts, control: ControlLoop, background: Background, stack: AsyncExitStack) -> Mesh | None:
    """Take part in the mesh, also with what all nodes know: names and keys. None: the configuration wants no mesh."""
    mesh: Mesh | None = None
    if parts.places.in_mesh:
        opening = open_mesh(
            parts.config,
            parts.places,
            parts.node_id,
            parts.secret,
            [cls(options, parts.context(cls.name)) for cls, options in parts.resolved.discoveries],
            control=control,
            clock=parts.clock,
            publish=parts.news.heard,
            forget=parts.news.forgot,
            silent=parts.router.silent,
        )
        mesh = await stack.enter_async_context(opening)
        background.serve(mesh.polls.run())
    parts.naming.follow(mesh, background)
    parts.keyring.follow(mesh, background)
    parts.records.open(background, mesh)
    return mesh


async def _share(parts: Parts, control: ControlLoop, background: Background, mesh: Mesh | None) -> Caches:
    return await open_sharing(
        parts.config,
        parts.models,
        parts.secret,
        mesh,
        book=parts.book,
        control=control,
        background=background,
        target=Targets(lambda: parts.router, parts.clock).choose,
        clock=parts.clock,
        score=parts.learning.speeds.score,
        buried=parts.ledger.buried,
    )


def _follow(
    parts: Parts, control: ControlLoop, background: Background, mesh: Mesh | None, caches: Caches, *, ends: bool
) -> None:
    """Tell the parts what is there now. `ends`: whoever runs this node waits for its departure."""
    parts.learning.follow(caches)
    parts.listening.follow(parts.events, control)
    parts.draining.follow(caches, background, ends=ends)
    parts.ledger.follow(caches, mesh, background)
    background.serve(parts.learning.speeds.run())


def _executor(parts: Parts, upstream: Upstream, caches: Caches, background: Background, fleet: Fleet) -> Executor:
    return Executor(
        node=parts.node,
        book=parts.book,
        wires=parts.models.wires,
        upstream=upstream,
        caches=caches,
        clock=parts.clock,
        spawn=background.start,
        released=parts.dispatcher.wake,
        poke=fleet.poke,
        first_byte_timeout=parts.models.first_byte_timeout,
        score=parts.learning.speeds.score,
    )
