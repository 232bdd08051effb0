"""A node's answer in the terminal: which node is asked, how what it says is printed, and what the exit status is.

0: done. 1: the node says no, or what was asked about is not as it should be. 2: no node could be asked: wrong usage, a
configuration that cannot be read, or nobody who answers.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from viiwork_core.cli.completion import complete_nodes
from viiwork_core.cli.failure import Failure
from viiwork_core.cli.operator import Operator, Refused
from viiwork_core.cli.table import Screen
from viiwork_core.config.durations import parse_duration
from viiwork_core.config.load import find_config, load_config
from viiwork_core.errors import ViiworkError


class NoAnswer(Failure):
    """No node could be asked."""

    exit_code = 2


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """Options that say which node is meant; the command gets an Operator, and whether it is to print JSON."""

    @click.option("--config", "file", type=click.Path(path_type=Path), help="The node's configuration.")
    @click.option(
        "--node",
        "--url",
        "api",
        shell_complete=complete_nodes,
        help="Another node than this machine's: http://HOST:PORT.",
    )
    @click.option("--secret-env", "variable", help="The variable with the mesh's secret; default: mesh.secret_env.")
    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @functools.wraps(command)
    def asked(file: Path | None, api: str | None, variable: str | None, *, as_json: bool, **more: Any) -> None:
        try:
            config = load_config(file, os.environ)
            node = Operator.at(api, config, variable) if api else Operator.here(config, variable)
            command(node.with_secrets_of(file or find_config(os.environ)), as_json=as_json, **more)
        except Refused as error:
            raise Failure(error) from error
        except ViiworkError as error:
            raise NoAnswer(error) from error

    return asked


def as_seconds(context: click.Context, option: click.Parameter, value: str) -> float:
    """An option's duration, such as "20s" or "1h30m"."""
    del context
    try:
        return parse_duration(value)
    except ValueError as error:
        raise click.BadParameter(str(error), param=option) from None


def json_text(value: object) -> str:
    """Indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()


def print_json(value: object) -> None:
    """The same, printed."""
    click.echo(json_text(value))


def print_table(rows: Sequence[Sequence[str]], before: str = "") -> None:
    """Aligned columns, the first row their names."""
    click.echo(before + "\n".join(Screen.here().table(rows)), color=True)
