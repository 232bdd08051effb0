"""viiwork config: the configuration file without starting anything."""

from __future__ import annotations

import os
from pathlib import Path

import click

from viiwork_core.config.load import load_config
from viiwork_core.config.schema import Config
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.options import Resolved, resolve


@click.group()
def config() -> None:
    """Look at the configuration."""


@config.command()
@click.argument("file", type=click.Path(path_type=Path))
def check(file: Path) -> None:
    """Read FILE with the installed plugins; print every problem, or a summary."""
    read = load_config(file, os.environ)
    registry = load_plugins(os.environ)
    resolved = resolve(read, registry)
    unused = (f"plugin {record.entry_point} failed to load: {record.reason}" for record in registry.failed)
    for warning in (*read.warnings, *unused):
        click.echo(f"warning: {warning}", err=True)
    click.echo(f"ok: {_summary(read, resolved)}")


def _summary(read: Config, resolved: Resolved) -> str:
    models = ", ".join(f"{model.config.name} on {model.engine.name}" for model in resolved.models)
    sources = ", ".join(cls.name for cls, _ in resolved.discoveries)
    return (
        f"node {read.node.name}, models: {models or 'none'}, policy: {resolved.policy.name}, "
        f"discovery: {sources or 'none'}"
    )
