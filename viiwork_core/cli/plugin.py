"""viiwork plugin: what is installed and what became of it; a new one; whether one keeps its contract."""

from __future__ import annotations

import json as jsonlib
import os
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from viiwork_core.cli.main import COMMANDS
from viiwork_core.cli.plugin_commands import registry
from viiwork_core.cli.scaffold import KINDS, write_plugin
from viiwork_core.registry.registry import LoadRecord

_COLUMNS = ("kind", "name", "distribution", "version", "api", "state", "reason")


@click.group()
def plugin() -> None:
    """Look at the installed plugins, begin one, check one."""


@plugin.command("list")
@click.option("--json", is_flag=True, help="Print a JSON list instead of a table.")
def list_(json: bool) -> None:
    """Every plugin with what it offers, whether it loaded, and why not."""
    rows = [row for record in registry(COMMANDS).records for row in _rows(record)]
    click.echo(jsonlib.dumps(rows, indent=2) if json else _table(rows))


def _kind(word: str) -> str:
    """The kind that a word means: a policy's block is `routing`, and the hook of cache says cache_transfer."""
    return {"routing": "policy", "cache_transfer": "cache"}.get(word, word)


@plugin.command(context_settings={"token_normalize_func": _kind})
@click.argument("kind", type=click.Choice(KINDS))
@click.argument("name")
def new(kind: str, name: str) -> None:
    """Write a plugin that works, as a place to start from.

    It is a distribution in the folder NAME, which must not exist: code, metadata, and tests that are green before the
    first edit. The kind cache is an engine with its cache transfer.
    """
    folder = write_plugin(kind, name, Path.cwd())
    click.echo(f"written: {folder.name}/")
    click.echo(f"next:    pip install -e ./{folder.name} pytest && viiwork plugin check {name} && pytest {folder.name}")


def _block(_: click.Context, option: click.Parameter, text: str | None) -> Mapping[str, Any] | None:
    """The options as JSON."""
    try:
        block = None if text is None else jsonlib.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"is not JSON: {error}", param=option) from error
    if block is not None and not isinstance(block, dict):
        raise click.BadParameter("is not a JSON object", param=option)
    return block


@plugin.command()
@click.argument("dist", required=False)
@click.option("--options", metavar="JSON", callback=_block, help="The plugin's block; left out: its own case's.")
@click.option("--path", type=click.Path(path_type=Path), help="A model: the engine's program is started for real.")
@click.pass_context
def check(ctx: click.Context, dist: str | None, options: Mapping[str, Any] | None, path: Path | None) -> None:
    """Load the plugin DIST, read its options, and try it with the kit of its kind.

    DIST is a distribution or the name of what it offers; left out: every plugin but the built-in ones. Each clause of
    the contract is printed with its verdict. The fake engine takes the place of an engine's program, unless the plugin
    brings a case of its own or --path names a model.
    """
    # By name, since the kits lie above all layers: nothing of the node needs them.
    kits = import_module("viiwork_core.testing.plugin_check")
    if not kits.check_plugins(dist, kits.Wishes(options, path), os.environ, click.echo):
        ctx.exit(1)


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
