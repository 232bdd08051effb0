"""The engines' programs: whether a backend could be started, what the engine says about it, and whether it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from viiwork_core.cli.command_lines import CommandLine, command_lines
from viiwork_core.cli.doctor.situation import Situation, ok, problem, split, warning
from viiwork_core.contracts.doctor import Finding
from viiwork_core.engines.commands import Commands
from viiwork_core.setup.programs import runs

FILES: Final = "files"
"""The topic that tells of models that are not there."""

_README = "see the README of the engine's plugin"


async def binaries(situation: Situation) -> Sequence[Finding]:
    """Each backend's command line is made as for a start, and each program is asked for its version."""
    machine = situation.machine
    if machine is None or not machine.resolved.models:
        return []
    lines = await command_lines(machine.config, machine.resolved, situation.environ)
    if FILES in situation.topics:
        missing = [model.path for model in machine.config.models if model.path is not None and not model.path.exists()]
        lines = [line for line in lines if not any(str(path) in (line.problem or "") for path in missing)]
    run = Commands("doctor").run
    programs = dict.fromkeys(line.argv[0] for line in lines if line.argv)
    return [*_starts(lines), *[await runs(program, run) for program in programs]]


def _starts(lines: Sequence[CommandLine]) -> Iterator[Finding]:
    for line in lines:
        if line.problem is not None:
            yield problem(*split(f"{line.backend}: {line.problem}", _README))
        elif line.attached is not None:
            yield ok(f"{line.backend}: attached to {line.attached}")
        else:
            yield ok(f"{line.backend}: could be started")
    for advice, backends in _said(lines).items():
        yield warning(*split(f"{', '.join(backends)}: {advice}", _README))


def _said(lines: Sequence[CommandLine]) -> dict[str, list[str]]:
    """What is said of several backends is told once."""
    said = dict[str, list[str]]()
    for line in lines:
        for advice in line.advice:
            said.setdefault(advice, []).append(line.backend)
    return said
