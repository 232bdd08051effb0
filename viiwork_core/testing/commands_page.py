"""Writes docs/cli.md: every command, as click itself tells of it.

python -m viiwork_core.testing.commands_page docs/cli.md
"""

from __future__ import annotations

import argparse
import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from viiwork_core.cli.main import COMMANDS, cli

_HEAD: Final = """\
# The command line

<!-- Made from the commands themselves by `make docs`: change them, not this page. -->

`viiwork COMMAND --help` says the same. Plugins may add commands, which `viiwork plugin list` shows.

## What commands have in common

Commands that ask a node (`alias`, `down`, `drain`, `key`, `kv`, `models`, `prompts`, `status`, `top`, `undrain`, `up`,
`why`) take the following; `key entry` alone asks nobody.

- `--config FILE`: the configuration of the node that is meant; by default the one of the usual places. The running node
  is found by its state folder.
- `--node http://HOST:PORT`: another node than this machine's.
- `--secret-env NAME`: the variable with the mesh's secret, by default the one that `mesh.secret_env` names. Writes are
  signed with it in a secured mesh.
- `--json`: JSON on stdout instead of text. What is said of progress goes to stderr either way.

Their exit status:

| | |
|---|---|
| 0 | done, and all is as it should be |
| 1 | the node says no, or what was asked about is not as it should be |
| 2 | nothing was asked: wrong usage, a configuration that cannot be read, no node that answers |

Not as it should be is: a model that is not healthy (`status`), a request that nobody knows (`why`), requests or
sessions that were left (`drain`), members that have not heard yet (`alias --wait`, `kv forget`), names that were
refused (`alias import`).

`viiwork doctor` has its own: 0 when all is well, 1 when there are warnings, 2 when there are problems. All others end
with 1 when something failed and with 2 for wrong usage. An error is one sentence on stderr, and below it what to do:
`remedy: ...`.

`NO_COLOR` is heeded wherever there is colour.
"""


def page() -> str:
    """The whole page."""
    root = click.Context(cli, info_name="viiwork")
    return "\n".join((_HEAD, *(part for name in sorted(COMMANDS) for part in _command(root, name, 2))))


def _command(parent: click.Context, name: str, depth: int) -> Iterator[str]:
    group = parent.command
    assert isinstance(group, click.Group)
    command = group.get_command(parent, name)
    assert command is not None
    ctx = click.Context(command, info_name=name, parent=parent)
    usage = " ".join(command.collect_usage_pieces(ctx))
    yield f"{'#' * min(depth, 4)} {ctx.command_path}\n"
    if depth == 2 and command.name not in (name, name.replace("-", "_")):
        yield f"The same as `viiwork {command.name}`.\n"
        return
    yield f"    {ctx.command_path} {usage}\n"
    yield f"{_text(command)}\n"
    options = [one for one in command.get_params(ctx) if isinstance(one, click.Option) and "--help" not in one.opts]
    rows = [row for one in options if (row := one.get_help_record(ctx))]
    if rows:
        yield "| | |\n|---|---|"
        yield from (f"| `{_cell(first)}` | {_cell(rest)} |" for first, rest in rows)
        yield ""
    if isinstance(command, click.Group):
        for inner in command.list_commands(ctx):
            yield from _command(ctx, inner, depth + 1)


def _text(command: click.Command) -> str:
    """What its docstring says. Lines that click is told to keep become a block of code."""
    parts = inspect.cleandoc(command.help or "").split("\n\n")
    return "\n\n".join(_paragraph(part) for part in parts)


def _paragraph(part: str) -> str:
    if part.startswith("\b\n"):
        return "\n".join(f"    {line}" for line in part.splitlines()[1:])
    return " ".join(part.split())


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def main() -> None:
    """Write it."""
    parser = argparse.ArgumentParser(prog="python -m viiwork_core.testing.commands_page", description="docs/cli.md.")
    parser.add_argument("file", type=Path)
    parser.parse_args().file.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
