"""viiwork down, viiwork up: take models of this machine's node down, and start them again."""

from __future__ import annotations

import os
from pathlib import Path

import click

from viiwork_core.cli.answer import print_json
from viiwork_core.cli.operator import Operator
from viiwork_core.config.load import load_config

_file = click.option(
    "--config", "file", type=click.Path(path_type=Path), help="The node's configuration; default: the usual places."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print the node's answer as JSON.")


@click.command()
@click.argument("models", nargs=-1)
@_file
@_json
def down(models: tuple[str, ...], file: Path | None, *, as_json: bool) -> None:
    """Take MODELS down, or all, until `viiwork up` or the node's next start. Running requests may finish."""
    _park("/v1/models/down", models, file, as_json=as_json)


@click.command()
@click.argument("models", nargs=-1)
@_file
@_json
def up(models: tuple[str, ...], file: Path | None, *, as_json: bool) -> None:
    """Start MODELS again, or all that were taken down."""
    _park("/v1/models/up", models, file, as_json=as_json)


def _park(path: str, models: tuple[str, ...], file: Path | None, *, as_json: bool) -> None:
    config = load_config(file, os.environ)
    answer = Operator.here(config).ask("POST", path, {"models": models} if models else {})
    if as_json:
        print_json(answer)
        return
    for model in answer["models"]:
        click.echo(f"{model['name']}: {'' if model['changed'] else 'already '}{'down' if model['parked'] else 'up'}")
