"""The report: findings under their topics, for a terminal or as JSON, and what they come to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from viiwork_core.cli.answer import print_json
from viiwork_core.cli.table import Screen
from viiwork_core.config.masks import Masks
from viiwork_core.contracts.doctor import Finding, Level
from viiwork_core.observe.events import plain

EXIT: Final = {Level.OK: 0, Level.WARNING: 1, Level.PROBLEM: 2}

_COLOURS: Final = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "red"}
_WIDEST: Final = max(map(len, Level))


@dataclass(frozen=True, slots=True)
class Told:
    """A finding under its topic."""

    topic: str
    finding: Finding


class Report:
    """Prints findings as they come, or all of them at the end as a JSON list. What is secret is masked."""

    def __init__(self, environ: Mapping[str, str], *, as_json: bool) -> None:
        self._masks, self._as_json, self._screen = Masks(environ), as_json, Screen.here()
        self.told = list[Told]()

    def add(self, topic: str, findings: Sequence[Finding]) -> None:
        """Findings of one topic."""
        clean = [Told(topic, self._clean(one)) for one in findings]
        if clean and not self._as_json:
            click.echo(click.style(topic, bold=True) if self._screen.colour else topic, color=True)
            for line in self._lines(clean):
                click.echo(line, color=True)
        self.told += clean

    def _clean(self, one: Finding) -> Finding:
        """Nodes and engines wrote some of it."""
        return Finding(one.level, self._masks.text(plain(one.what)), self._masks.text(plain(one.remedy)))

    def _lines(self, told: Sequence[Told]) -> Iterator[str]:
        for one in (each.finding for each in told):
            mark = one.level.value.ljust(_WIDEST)
            yield f"  {click.style(mark, fg=_COLOURS[one.level]) if self._screen.colour else mark}  {one.what}"
            if one.remedy:
                yield f"  {' ' * _WIDEST}  remedy: {one.remedy}"

    def end(self) -> int:
        """Say what it comes to; the exit status."""
        levels = Counter(one.finding.level for one in self.told)
        if self._as_json:
            print_json([_object(one) for one in self.told])
        else:
            counted = (f"{levels[one]} {one}{'' if one is Level.OK or levels[one] == 1 else 's'}" for one in Level)
            click.echo(", ".join(counted))
        return EXIT[max(levels, key=EXIT.__getitem__, default=Level.OK)]


def _object(told: Told) -> dict[str, Any]:
    one = told.finding
    return {"topic": told.topic, "level": one.level.value, "what": one.what, "remedy": one.remedy}
