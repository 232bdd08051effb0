"""The engines' programs: whether a backend could be started, what the engine says about it, and whether it runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from viiwork_core.cli.command_lines import CommandLine, command_lines
from viiwork_core.cli.doctor.situation import Situation, ok, problem, split, warning
from viiwork_core.contracts.context import RunCommand
from viiwork_core.contracts.doctor import Finding
from viiwork_core.engines.commands import Commands
from viiwork_core.errors import EngineRefused

NOT_RUN: Final = frozenset({126, 127})
"""Exit statuses of a program that could not begin: its libraries are missing, or it is for another machine."""

_README = "see the README of the engine's plugin"


async def binaries(situation: Situation) -> Sequence[Finding]:
    """Each backend's command line is made as for a start, and each program is asked for its version."""
    machine = situation.machine
    if machine is None or not machine.resolved.models:
        return []
    lines = await command_lines(machine.config, machine.resolved, situation.environ)
    run = Commands("doctor").run
    programs = dict.fromkeys(line.argv[0] for line in lines if line.argv)
    return [*_starts(lines), *[await _runs(program, run) for program in programs]]


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


async def _runs(program: str, run: RunCommand) -> Finding:
    """Whatever it makes of --version: one that begins at all is what is looked for here."""
    try:
        output = await run((program, "--version"))
    except EngineRefused as error:
        return problem(f"{program} does not run: {error.message}", "install it anew, or name another program")
    first = next((line.strip() for line in output.text.splitlines() if line.strip()), "")[:120]
    if output.returncode in NOT_RUN or output.returncode < 0:
        what = f"{program} does not run: {first or f'it ended with {output.returncode}'}"
        return problem(what, "install what it lacks, or a build for this machine")
    return ok(f"{program} runs{f': {first}' if first else ''}")
