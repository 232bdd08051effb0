"""viiwork top: what goes on in the mesh, in a terminal that is painted again and again, or once."""

from __future__ import annotations

import asyncio
import shutil
import sys
import time
from typing import Final

import click

from viiwork_core.cli.answer import asking, print_json
from viiwork_core.cli.operator import Operator
from viiwork_core.cli.top.once import frame, looked
from viiwork_core.cli.top.stream import PATH
from viiwork_core.errors import ConfigError

WIDEST: Final = 120
"""Columns of a frame that goes into no terminal."""


@click.command()
@click.option("--once", is_flag=True, help="Print one frame as plain text, and end. Needs no textual.")
@asking
def top(node: Operator, *, once: bool, as_json: bool) -> None:
    """Show the mesh as this node sees it: nodes, models, requests on their way, aliases, caches that move, events.

    Keys: q ends it, the arrows scroll, 1 to 6 go to a section, / looks for a text, p pauses, ? shows them all. It needs
    80 columns and 24 lines, and heeds NO_COLOR. With --json it prints once what it would show.
    """
    if once or as_json:
        picture = asyncio.run(looked(node))
        if as_json:
            print_json(picture.told(time.monotonic()))
            return
        width = shutil.get_terminal_size((WIDEST, 24)).columns
        for line in frame(picture, time.monotonic(), max(80, width)):
            click.echo(line)
        return
    _run(node)


def _run(node: Operator) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError("viiwork top needs a terminal", remedy="for scripts: viiwork top --once, or --json")
    try:
        from viiwork_core.cli.top.screen import Top
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in ("textual", "rich"):
            raise
        remedy = "pip install 'viiwork[top]', or use viiwork top --once"
        raise ConfigError("viiwork top needs textual, which is not installed", remedy=remedy) from None
    # What is wrong with what this command knows is said at once, and not tried again for ever.
    node.shown(PATH)
    Top(node.renewed, node.api).run()
