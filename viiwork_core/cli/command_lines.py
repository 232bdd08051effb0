"""The command lines of all backends, made as a node would make them, without starting one."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from viiwork_core.clock import SystemClock
from viiwork_core.config.masks import Masks
from viiwork_core.config.schema import Config
from viiwork_core.contracts.context import Context
from viiwork_core.contracts.engine import Spec
from viiwork_core.engines.calls import EngineCalls, told
from viiwork_core.engines.commands import Commands
from viiwork_core.engines.digest import Digests
from viiwork_core.engines.environment import MARKER, child_environment, gpu_pin
from viiwork_core.engines.gpus.inventory import Inventory, detect
from viiwork_core.engines.plan import BackendPlan
from viiwork_core.engines.surroundings import with_surroundings
from viiwork_core.errors import ViiworkError
from viiwork_core.node.plans import ContextFor, may_share, plan
from viiwork_core.registry.options import Resolved, ResolvedModel

_ASKER = "config-show"
"""Stands for a node's id in the environment of the short commands that engines ask for."""


@dataclass(frozen=True, slots=True)
class CommandLine:
    """What would be started for one backend; secrets are masked."""

    backend: str
    """MODEL/N; the model alone if it cannot be laid out."""

    argv: tuple[str, ...] = ()
    """Empty: nothing is started, or `problem` says why it cannot be known. A port of 0 is drawn at each launch."""

    env: Mapping[str, str] = field(default_factory=dict)
    """What the process gets beyond the node's own variables."""

    attached: str | None = None
    """URL of a server that runs already."""

    problem: str | None = None
    advice: tuple[str, ...] = ()
    """What the engine says about it before a start."""

    def shown(self) -> str:
        """As one would type it."""
        if self.problem is not None:
            return self.problem
        if self.attached is not None:
            return f"attached to {self.attached}"
        setting = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        return " ".join([*setting, shlex.join(self.argv)])

    def warnings(self) -> tuple[str, ...]:
        """Why it would not start here, or what the engine says about it."""
        return self.advice if self.problem is None else (self.problem,)


async def command_lines(config: Config, resolved: Resolved, environ: Mapping[str, str]) -> list[CommandLine]:
    """One for each backend. Asks the machine for its cards, and engines' programs for their flags; changes nothing."""
    commands = Commands(_ASKER)
    cards = Inventory(await detect(config.gpu.vendor, commands.run), commands.run, clock=SystemClock())
    await cards.look()
    with TemporaryDirectory(prefix="viiwork-") as folder:
        digests = Digests(Path(folder))

        def context_for(plugin: str) -> Context:
            own = Path(folder) / plugin
            own.mkdir(mode=0o700, exist_ok=True)
            return Context(config.node.name, own, commands.run, digests.of)

        found = [line for model in resolved.models for line in await _of_model(config, model, context_for, cards)]
        # Plugins got a folder for the moment, so that nothing is left behind; what is shown is where theirs will be.
        places = (folder, str(config.node.state_dir / "plugins"))
        return [_cleaned(line, places, environ) for line in found]


async def _of_model(
    config: Config, model: ResolvedModel, context_for: ContextFor, cards: Inventory
) -> list[CommandLine]:
    in_mesh = config.mesh.network != "none"
    share = may_share(model.config, in_mesh=in_mesh, secured=not config.mesh.open)
    caches = config.node.state_dir / "kv" / "engines"
    try:
        planned = plan(model, context_for, caches=caches, share=share, vendor=cards.vendor)
        async with AsyncExitStack() as stack:
            calls = EngineCalls(planned.backends[0].engine, clock=SystemClock(), timeout=config.health.timeout)
            await calls.open()
            stack.push_async_callback(calls.close)
            total = sum(one.backends for one in config.models)
            specs = [with_surroundings(backend.spec, cards.gpus(), total) for backend in planned.backends]
            pairs = zip(planned.backends, specs, strict=True)
            return [await _of_backend(calls, backend, spec) for backend, spec in pairs]
    except ViiworkError as error:
        return [CommandLine(model.config.name, env=model.config.env, problem=told(error))]


async def _of_backend(calls: EngineCalls, backend: BackendPlan, spec: Spec) -> CommandLine:
    if backend.address is not None:
        return CommandLine(backend.id, attached=backend.address.url)
    try:
        launch = await calls.launch(spec)
        advice = await calls.advice(spec)
    except ViiworkError as error:
        return CommandLine(backend.id, env=spec.env, problem=told(error))
    if launch is None:
        return CommandLine(backend.id, problem=f"the engine {calls.name} starts nothing for it")
    env = child_environment(_ASKER, gpu_pin(spec.vendor, spec.gpus), launch.env, spec.env, parent={})
    env = {name: value for name, value in env.items() if name != MARKER}
    return CommandLine(backend.id, launch.argv, env, advice=advice)


def _cleaned(line: CommandLine, places: tuple[str, str], environ: Mapping[str, str]) -> CommandLine:
    masks = Masks({**environ, **line.env})
    argv = masks.arguments(word.replace(*places) for word in line.argv)
    env = masks.environment({name: value.replace(*places) for name, value in line.env.items()})
    problem = None if line.problem is None else masks.text(line.problem.replace(*places))
    advice = tuple(masks.text(one.replace(*places)) for one in line.advice)
    return CommandLine(line.backend, tuple(argv), env, line.attached, problem, advice)
