"""Starts an engine as the node would, for the time of a test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import anyio

from viiwork_core.contracts.capabilities import Attaches, Prepares
from viiwork_core.contracts.context import Context
from viiwork_core.contracts.engine import Address, Engine, Launch, Probe, Spec
from viiwork_core.engines.commands import Commands
from viiwork_core.engines.digest import Digests
from viiwork_core.engines.environment import child_environment
from viiwork_core.engines.listener import free_port
from viiwork_core.engines.process import Child, LineSink, start_group
from viiwork_core.errors import EngineUnreachable

READY_LIMIT = 60.0
PROBE_PAUSE = 0.02


def kit_context(folder: Path) -> Context:
    """The core's real services for a plugin object under test; its state lies in `folder`, which must exist."""
    return Context(node="kit", state_dir=folder, run_command=Commands("kit").run, digest=Digests(folder).of)


class NotReady(AssertionError):
    """The engine ended, or did not become ready in time. The message carries its last lines."""


@dataclass(frozen=True)
class Running:
    """An engine's process that is ready."""

    address: Address
    spec: Spec
    """As launched, with the port."""

    child: Child[LineSink]


@asynccontextmanager
async def launched(
    engine: Engine,
    spec: Spec,
    *,
    ready_within: float = READY_LIMIT,
    upstream: Callable[[Spec], Launch] | None = None,
) -> AsyncIterator[Running]:
    """Start what `engine.launch` says, or `upstream` in its place, on a free port, wait until `probe` is ready, and end
    it afterwards.

    Raises NotReady, or what the engine raises.
    """
    spec = replace(spec, port=free_port())
    if upstream is None and isinstance(engine, Prepares):
        await engine.prepare(spec)
    launch = engine.launch(spec) if upstream is None else upstream(spec)
    if launch is None:
        raise NotReady("launch() says that there is nothing to start")
    child = await start_group(launch.argv, child_environment("kit", launch.env), LineSink(_ignore))
    try:
        address = Address(spec.host, spec.port)
        await _wait_ready(engine, address, child, ready_within)
        yield Running(address, spec, child)
    finally:
        with anyio.CancelScope(shield=True):
            await child.end(engine.stop_timeout)


@asynccontextmanager
async def running(engine: Engine, spec: Spec, *, ready_within: float = READY_LIMIT) -> AsyncIterator[Address]:
    """The address of a ready server of `engine`, whose process ends with the block. Works for any engine."""
    if isinstance(engine, Attaches):
        yield await attached(engine, ready_within=ready_within)
        return
    async with launched(engine, spec, ready_within=ready_within) as process:
        yield process.address


async def attached(engine: Engine, *, ready_within: float = READY_LIMIT) -> Address:
    """The first server that `engine` attaches to, when it is ready. Raises NotReady."""
    assert isinstance(engine, Attaches), "only an engine that attaches has servers that run already"
    address = engine.addresses()[0]
    await _wait_ready(engine, address, None, ready_within)
    return address


async def _wait_ready(engine: Engine, address: Address, child: Child[LineSink] | None, limit: float) -> None:
    said = Probe(ready=False, reason="nothing listens yet")
    with anyio.move_on_after(limit):
        while not said.ready:
            if child is not None and child.returncode is not None:
                raise NotReady(f"it ended with status {child.returncode}: {_tail(child)}")
            await anyio.sleep(PROBE_PAUSE)
            try:
                said = await engine.probe(address)
            except EngineUnreachable:
                continue
        return
    raise NotReady(f"not ready after {limit:g} s ({said.reason}): {_tail(child) if child else address.url}")


def _tail(child: Child[LineSink]) -> str:
    return " | ".join(child.sink.tail)


def _ignore(line: str) -> None:
    """The sink keeps the last lines by itself."""
