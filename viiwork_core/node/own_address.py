"""The address at which other members reach this node, asked of the discoveries where the configuration names none.

Asked once before the node opens, so that what is known then is bound like any other address. A network may take its
time to come up: then the node opens without a mesh, serves its own machine, and asks on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address
from typing import Any, Final, TypeVar

import structlog

from viiwork_core.clock import Clock, SystemClock
from viiwork_core.config.schema import Config
from viiwork_core.contracts.context import Context
from viiwork_core.contracts.discovery import Discovery
from viiwork_core.engines.commands import Commands
from viiwork_core.engines.digest import Digests
from viiwork_core.errors import ConfigError, ViiworkError
from viiwork_core.node.identity import new_node_id
from viiwork_core.registry.guard import Guard
from viiwork_core.registry.options import Resolved

FIRST_S: Final = 2.0
"""Deadline of the question before the node opens: nothing is served meanwhile."""

DEADLINE_S: Final = 10.0
"""Of each later question to one source."""

AGAIN_S: Final = 2.0
PATIENCE_S: Final = 300.0
"""How long that is an ordinary start. It is asked on after that, less often."""

LATER_S: Final = 30.0

PREFERENCE_S: Final = 10.0
"""How long the first of several networks is waited for when the configuration names none."""

_log = structlog.get_logger("viiwork.mesh")

T = TypeVar("T")


def own_address(config: Config, resolved: Resolved) -> str | None:
    """What the first discovery that can tell says now. None: it is not theirs to say.

    Raises ViiworkError when that one cannot tell yet: see `awaited_address`.
    """
    sources = [cls(options, _context(config, cls.name)) for cls, options in resolved.discoveries]
    return _run(_first(telling(config.mesh.network, sources)))


async def awaited_address(network: str | None, sources: Sequence[Discovery], *, clock: Clock) -> str:
    """This node's address, asked for until there is an answer. On the control loop."""
    asked, told = telling(network, sources), dict[str, str]()
    started = clock.monotonic()
    while True:
        waited = clock.monotonic() - started
        for source in asked if network is not None or waited >= PREFERENCE_S else asked[:1]:
            try:
                found = await _asked(source, DEADLINE_S)
            except ViiworkError as error:
                if told.get(source.name) != error.message:
                    told[source.name] = error.message
                    what = "the mesh waits for this node's address"
                    _log.warning(what, source=source.name, reason=error.message, remedy=error.remedy or None)
                continue
            if found is not None:
                return found
        await asyncio.sleep(AGAIN_S if waited < PATIENCE_S else LATER_S)


def telling(network: str | None, sources: Sequence[Discovery]) -> list[Discovery]:
    """The sources that can tell an address, by rank: those of `network` alone, if it is set and has some."""
    able = [source for source in sources if type(source).own_address is not Discovery.own_address]
    if network is not None:
        return [source for source in able if network in {source.name, *source.networks}] or able
    # Of several networks the one that encrypts.
    return sorted(able, key=lambda source: "tailnet" not in source.networks)


async def _first(sources: Sequence[Discovery]) -> str | None:
    for source in sources:
        found = await _asked(source, FIRST_S)
        if found is not None:
            return found
    return None


async def _asked(source: Discovery, deadline_s: float) -> str | None:
    # A new guard each time: a source on the bench would have to be waited for, and these questions are rare.
    guard = Guard(f"discovery {source.name}", clock=SystemClock())
    found = await guard.call("own_address", deadline_s, source.own_address)
    return None if found is None else _checked(found, source.name)


def _checked(address: str, name: str) -> str:
    try:
        return str(ip_address(address))
    except ValueError:
        raise ConfigError(
            f"mesh.advertise: is not set, and discovery {name} says {address!r}, which is no IP address",
            remedy="set mesh.advertise to this node's address",
        ) from None


def _context(config: Config, plugin: str) -> Context:
    folder = config.node.state_dir / "plugins" / plugin
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Context(config.node.name, folder, Commands(new_node_id()).run, Digests(config.node.state_dir).of)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """To its end, whether or not a server's loop runs on this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()
