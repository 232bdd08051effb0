"""Tables for a terminal: aligned columns that fit its width, and colour only where it is wanted."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import click

from viiwork_core.observe.events import plain

GAP: Final = "  "
NARROWEST: Final = 6
"""Characters that a column keeps, if it has so many."""

_COLOURS: Final = {
    "healthy": "green",
    "alive": "green",
    "starting": "yellow",
    "draining": "yellow",
    "parked": "yellow",
    "suspect": "yellow",
    "unhealthy": "red",
    "dead": "red",
}
"""Of words that say how something is."""


@dataclass(frozen=True, slots=True)
class Screen:
    """Where tables are printed."""

    width: int
    colour: bool

    @classmethod
    def here(cls) -> Screen:
        """80 columns where it is no terminal. NO_COLOR (https://no-color.org) is heeded."""
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        return cls(shutil.get_terminal_size((80, 24)).columns, colour)

    def table(self, rows: Sequence[Sequence[str]]) -> list[str]:
        """Lines of at most `width` characters; cells that do not fit are cut, the widest columns first."""
        cells = [[plain(cell) for cell in row] for row in rows]
        widths = _fitting([max(map(len, column)) for column in zip(*cells, strict=True)], self.width)
        return [self._line(row, widths) for row in cells]

    def _line(self, row: Sequence[str], widths: Sequence[int]) -> str:
        padded = [_cut(cell, width).ljust(width) for cell, width in zip(row, widths, strict=True)]
        padded[-1] = padded[-1].rstrip()
        return GAP.join(self._coloured(cell) for cell in padded).rstrip()

    def _coloured(self, cell: str) -> str:
        colour = _COLOURS.get(cell.strip())
        return click.style(cell, fg=colour) if self.colour and colour else cell


def _fitting(widths: list[int], width: int) -> list[int]:
    spare = width - len(GAP) * (len(widths) - 1) - sum(widths)
    while spare < 0 and max(widths) > NARROWEST:
        widest = widths.index(max(widths))
        widths[widest] -= 1
        spare += 1
    return widths


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(0, width - 2)] + ".."
