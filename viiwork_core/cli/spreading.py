"""Waiting until the members of a mesh have what was written on one of them, and saying which do."""

from __future__ import annotations

import sys
import time
from typing import Any, Final

import click

from viiwork_core.cli.answer import as_seconds
from viiwork_core.cli.operator import Operator

LOOK_S: Final = 0.1
"""Between two looks at who has it."""

timeout = click.option(
    "--timeout", default="5s", callback=as_seconds, help="How long to wait for the members. 0: not at all."
)
wait = click.option("--wait", is_flag=True, help="Exit with 1 unless every member that is alive has it by then.")


def spread(node: Operator, path: str, within_s: float, *, signed: bool = False) -> dict[str, Any]:
    """What the node says of the name at `path`, with "members", once all members have it or the time is up."""
    deadline = time.monotonic() + within_s
    info: dict[str, Any] = node.ask("GET", path, signed=signed)
    while info["members"]["missing"] and time.monotonic() < deadline:
        time.sleep(LOOK_S)
        info = node.ask("GET", path, signed=signed)
    return info


def tell(members: dict[str, Any], *, wait: bool, quiet: bool, err: bool = False) -> None:
    """Print how many members have it, unless `quiet`; with `wait` exit with 1 where one does not."""
    if not quiet:
        click.echo(f"{members['have']} of {members['alive']} members have it{_missing(members['missing'])}", err=err)
    if wait and members["missing"]:
        sys.exit(1)


def _missing(nodes: list[str]) -> str:
    return f"; not yet: {', '.join(nodes)} (they fetch it as soon as they can be reached)" if nodes else ""
