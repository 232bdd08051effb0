"""A node's answer in the terminal: which node is asked, and how what it says is printed."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from viiwork_core.cli.operator import Operator
from viiwork_core.cli.table import Screen
from viiwork_core.config.load import load_config


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """Options that say which node is meant; the command gets an Operator, and whether it is to print JSON."""

    @click.option("--config", "file", type=click.Path(path_type=Path), help="The node's configuration.")
    @click.option("--node", "--url", "api", help="Another node than this machine's: http://HOST:PORT.")
    @click.option("--secret-env", "variable", help="The variable with the mesh's secret; default: mesh.secret_env.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @functools.wraps(command)
    def asked(file: Path | None, api: str | None, variable: str | None, *, as_json: bool, **more: Any) -> None:
        config = load_config(file, os.environ)
        node = Operator.at(api, config, variable) if api else Operator.here(config, variable)
        command(node, as_json=as_json, **more)

    return asked


def json_text(value: object) -> str:
    """Indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def print_json(value: object) -> None:
    """The same, printed."""
    click.echo(json_text(value))


def print_table(rows: Sequence[Sequence[str]], before: str = "") -> None:
    """Aligned columns, the first row their names."""
    click.echo(before + "\n".join(Screen.here().table(rows)), color=True)
