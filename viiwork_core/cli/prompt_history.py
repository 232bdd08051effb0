"""viiwork prompts: what the node of this machine keeps of what its clients asked, where activity.prompts says so.

Exit status: 0, 1 when nothing is kept or may be read, 2 when no node answers.
"""

from __future__ import annotations

import time
from typing import Any, Final
from urllib.parse import quote

import click

from viiwork_core.cli.answer import asking, print_json
from viiwork_core.cli.completion import complete_requests
from viiwork_core.cli.operator import Operator
from viiwork_core.cli.table import Screen
from viiwork_core.observe.events import plain

PATH: Final = "/v1/prompts"
_COLUMNS: Final = ("AT", "REQUEST", "MODEL", "STATUS", "MESSAGES", "CHARACTERS", "TOKENS", "ANSWER", "TOOK")


@click.command()
@click.argument("request_id", required=False, shell_complete=complete_requests)
@asking
def prompts(node: Operator, *, request_id: str | None, as_json: bool) -> None:
    """List what is kept of what clients of this machine's node asked, or show REQUEST_ID whole.

    Nothing is kept unless activity.prompts is sizes or full. Only the node's user reads it, on this machine.
    """
    told = node.ask("GET", PATH if request_id is None else f"{PATH}?rid={quote(request_id, safe='')}")
    if as_json:
        print_json(told)
    elif request_id is None:
        _list(told)
    else:
        _one(told)


def _list(told: dict[str, Any]) -> None:
    if not told["prompts"]:
        click.echo(f"nothing has been kept yet; activity.prompts is {told['mode']}")
        return
    rows = [tuple(map(plain, _row(one))) for one in told["prompts"]]
    for line in Screen.here().table([_COLUMNS, *rows]):
        click.echo(line, color=True)


def _row(one: dict[str, Any]) -> tuple[str, ...]:
    figures = ("status", "messages", "prompt_chars", "prompt_tokens", "output_tokens")
    at = time.strftime("%H:%M:%S", time.localtime(one["t"]))
    return (at, one["rid"], one["model"], *(str(one.get(figure, "-")) for figure in figures), f"{one['elapsed_ms']} ms")


def _one(one: dict[str, Any]) -> None:
    click.echo("  ".join(filter(None, map(plain, _row(one)))))
    for name in ("prompt", "output"):
        if name in one:
            click.echo(f"\n--- {name} ---")
            # Each line by itself: what a model wrote may hold what a terminal would obey.
            click.echo("\n".join(map(plain, one[name].splitlines())))
