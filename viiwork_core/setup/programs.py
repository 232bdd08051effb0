"""The engines' programs: whether one begins to run at all on this machine."""

from __future__ import annotations

from typing import Final

from viiwork_core.contracts.context import RunCommand
from viiwork_core.contracts.doctor import Finding, Level
from viiwork_core.errors import EngineRefused

NOT_RUN: Final = frozenset({126, 127})
"""Exit statuses of a program that could not begin: its libraries are missing, or it is for another machine."""


async def runs(program: str, run: RunCommand) -> Finding:
    """Whatever it makes of --version: one that begins at all is what is looked for here."""
    try:
        output = await run((program, "--version"))
    except EngineRefused as error:
        remedy = "install it anew, or name another program"
        return Finding(Level.PROBLEM, f"{program} does not run: {error.message}", remedy)
    first = next((line.strip() for line in output.text.splitlines() if line.strip()), "")[:120]
    if output.returncode in NOT_RUN or output.returncode < 0:
        what = f"{program} does not run: {first or f'it ended with {output.returncode}'}"
        return Finding(Level.PROBLEM, what, "install what it lacks, or a build for this machine")
    return Finding(Level.OK, f"{program} runs{f': {first}' if first else ''}")
