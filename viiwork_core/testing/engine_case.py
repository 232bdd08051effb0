"""What the engine kit's clauses look at."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from viiwork_core.contracts.capabilities import Attaches, Prepares, wire_of
from viiwork_core.contracts.context import Context
from viiwork_core.contracts.engine import Address, Engine, Launch, Load, Probe, Spec, Wire
from viiwork_core.contracts.options import PluginOptions
from viiwork_core.testing.clauses import require
from viiwork_core.testing.servers import READY_LIMIT


@dataclass(frozen=True)
class EngineCase:
    """One engine class with everything that the clauses need to try it."""

    engine: type[Engine]
    options: PluginOptions
    spec: Spec
    """Its port is chosen by the kit. For an engine that attaches, the options say where a server runs already."""

    context: Context
    ready_within: float = READY_LIMIT
    """Seconds from launch to ready on this machine."""

    settle_within: float = 5.0
    """Seconds within which the engine's load must show what was done to it."""

    upstream: Callable[[Spec], Launch] | None = None
    """What to start in place of what `launch` says, such as a fake of the engine; None: what it says."""

    address: Address | None = None
    """Set by the kit for live clauses: where the engine runs, and the pid of the process that was started, if any."""

    pid: int | None = None

    @property
    def live(self) -> Address:
        assert self.address is not None, "a live clause needs a running engine"
        return self.address

    @property
    def wire(self) -> Wire:
        """What holds for an instance with these options."""
        return wire_of(self.engine(self.options, self.context))

    @property
    def attaches(self) -> bool:
        """Whether there is nothing to start."""
        return issubclass(self.engine, Attaches)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Engine]:
        """A fresh, open instance of the engine."""
        async with self.engine(self.options, self.context) as engine:
            yield engine


async def prepared_launch(case: EngineCase, spec: Spec) -> Launch | None:
    """What a fresh instance would start for `spec`."""
    async with case.opened() as engine:
        await prepare(engine, spec)
        return engine.launch(spec)


async def prepare(engine: Engine, spec: Spec) -> None:
    """Let an engine read what it must before `launch`."""
    if isinstance(engine, Prepares):
        await engine.prepare(spec)


def check_probe(probe: Probe, what: str) -> None:
    """It is a Probe and its progress is possible. Raises AssertionError."""
    require(isinstance(probe, Probe), f"{what}: not a Probe: {probe!r}")
    require(probe.progress is None or 0 <= probe.progress <= 1, f"{what}: progress {probe.progress}")


def check_load(load: Load, what: str) -> None:
    """Every figure is possible. Raises AssertionError."""
    require(load.slots >= 0 and (load.busy is None or load.busy >= 0), f"{what}: negative figure in {load}")
    require(load.waiting is None or load.waiting >= 0, f"{what}: negative figure in {load}")
    require(load.context is None or load.context > 0, f"{what}: context in {load}")
    require(all(slot.tokens is None or slot.tokens >= 0 for slot in load.each), f"{what}: negative figure in {load}")
