"""viiwork plugin: what is installed, and what became of it."""

from __future__ import annotations

import json as jsonlib
import os
from collections.abc import Sequence

import click

from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.registry import LoadRecord

_COLUMNS = ("kind", "name", "distribution", "version", "api", "state", "reason")


@click.group()
def plugin() -> None:
    """Look at the installed plugins."""


@plugin.command("list")
@click.option("--json", is_flag=True, help="Print a JSON list instead of a table.")
def list_(json: bool) -> None:
    """Every plugin with what it offers, whether it loaded, and why not."""
    rows = [row for record in load_plugins(os.environ).records for row in _rows(record)]
    click.echo(jsonlib.dumps(rows, indent=2) if json else _table(rows))


def _rows(record: LoadRecord) -> list[dict[str, str | None]]:
    """One row for each thing offered, or one for a plugin that offers none."""
    offered: Sequence[tuple[str | None, str | None]] = record.provides or ((None, None),)
    api = ".".join(map(str, record.api)) if record.api else None
    rest = (record.distribution, record.version, api, record.state, record.reason or None)
    return [dict(zip(_COLUMNS, (kind, name, *rest), strict=True)) for kind, name in offered]


def _table(rows: Sequence[dict[str, str | None]]) -> str:
    cells = [[column.upper() for column in _COLUMNS]] + [[row[column] or "-" for column in _COLUMNS] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)
    return "\n".join(line.rstrip() for line in lines)
