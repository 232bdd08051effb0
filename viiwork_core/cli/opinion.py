"""The opinion: what the node's loader and the engines say of a proposal, by model. Nothing is started."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from viiwork_core.cli.command_lines import CommandLine, command_lines
from viiwork_core.config.schema import Config
from viiwork_core.errors import ConfigError
from viiwork_core.registry.registry import Registry
from viiwork_core.setup.hardware import Hardware
from viiwork_core.setup.layout import shortages
from viiwork_core.setup.proposal import Proposal, judge


@dataclass(frozen=True, slots=True)
class Opinion:
    """By the model's name, sentences."""

    refusals: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Why a node would not start it."""

    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What may go wrong or be slow."""

    others: tuple[str, ...] = ()
    """Why a node would not start at all."""

    config: Config | None = None
    programs: tuple[Path, ...] = ()
    """What would be started for it."""

    def check(self) -> None:
        """Raise ConfigError, with a line for each refusal."""
        found = [*self.others, *(one for reasons in self.refusals.values() for one in reasons)]
        if found:
            what = "\n".join(dict.fromkeys(found))
            raise ConfigError(what, remedy="correct what is named; nothing was changed")


def opinion(proposal: Proposal, hardware: Hardware, environ: Mapping[str, str], registry: Registry) -> Opinion:
    """Ask the loader, and where it finds nothing wrong the engines; some seconds."""
    found = judge(proposal, environ, registry)
    names = [line.name for line in proposal.lines]
    notes = {name: [f"it may not fit: {why}"] for name, why in shortages(proposal.lines, hardware).items()}
    if found.config is None or found.resolved is None:
        refusals = {names[index]: list(reasons) for index, reasons in found.refusals.items() if index < len(names)}
        return Opinion(refusals, notes, found.others)
    lines = asyncio.run(command_lines(found.config, found.resolved, environ)) if names else []
    refusals = {}
    for line in lines:
        into = refusals if line.problem is not None else notes
        said = into.setdefault(_model(line, names), []) if line.warnings() else []
        said += [one for one in line.warnings() if one not in said]
    programs = dict.fromkeys(Path(line.argv[0]) for line in lines if line.argv)
    return Opinion(refusals, notes, (), found.config, tuple(programs))


def _model(line: CommandLine, names: Sequence[str]) -> str:
    return line.backend if line.backend in names else line.backend.rpartition("/")[0]
