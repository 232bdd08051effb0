"""What plugins look at: the checks that they offer by their hook."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from viiwork_core.cli.doctor.situation import Machine, Situation, warning
from viiwork_core.clock import SystemClock
from viiwork_core.contracts.context import Context
from viiwork_core.contracts.doctor import DoctorCheck, DoctorContext, DoctorModel, Finding
from viiwork_core.engines.commands import Commands
from viiwork_core.engines.digest import Digests
from viiwork_core.engines.gpus.inventory import Inventory, detect
from viiwork_core.engines.surroundings import with_surroundings
from viiwork_core.errors import ViiworkError
from viiwork_core.node.plans import plan
from viiwork_core.registry.guard import Guard

DEADLINE_S: Final = 60.0


async def plugins(situation: Situation) -> Sequence[tuple[str, list[Finding]]]:
    """The findings of each plugin's check, by its name."""
    machine = situation.machine
    checks = machine.registry.doctor_checks() if machine is not None else ()
    if machine is None or not checks:
        return []
    with tempfile.TemporaryDirectory(prefix="viiwork-") as folder:
        models = await _models(machine, Path(folder))
        api = situation.running.api.url if situation.running is not None else None
        found = []
        for check in checks:
            context = DoctorContext(_services(machine, Path(folder), check.name), models, api)
            found.append((check.name, await _run(check, context)))
        return found


async def _run(check: type[DoctorCheck], context: DoctorContext) -> list[Finding]:
    async def run() -> list[Finding]:
        found = list(await check().run(context))
        if strange := [one for one in found if not isinstance(one, Finding)]:
            raise TypeError(f"{strange[0]!r} is no Finding")
        return found

    try:
        return await Guard(f"doctor check {check.name}", clock=SystemClock()).call("run", DEADLINE_S, run)
    except ViiworkError as error:
        return [warning(error.message, error.remedy or "update the plugin, or name it in VIIWORK_BLOCK")]


def _services(machine: Machine, folder: Path, name: str) -> Context:
    own = folder / name
    own.mkdir(mode=0o700, exist_ok=True)
    return Context(machine.config.node.name, own, Commands("doctor").run, Digests(folder).of)


async def _models(machine: Machine, folder: Path) -> tuple[DoctorModel, ...]:
    config, run = machine.config, Commands("doctor").run
    cards = Inventory(await detect(config.gpu.vendor, run), run, clock=SystemClock())
    await cards.look()
    share, total = config.mesh.network != "none" and not config.mesh.open, sum(one.backends for one in config.models)
    found = list[DoctorModel]()
    for model in machine.resolved.models:
        try:
            planned = plan(
                model,
                lambda name: _services(machine, folder, name),
                caches=config.node.state_dir / "kv" / "engines",
                share=share,
                vendor=cards.vendor,
            )
        except ViiworkError:
            found.append(DoctorModel(model.engine.name, model.options, ()))  # told where its start is looked at
            continue
        specs = [one.spec for one in planned.backends if one.address is None]
        known = tuple(with_surroundings(spec, cards.gpus(), total) for spec in specs)
        found.append(DoctorModel(model.engine.name, model.options, known))
    return tuple(found)
