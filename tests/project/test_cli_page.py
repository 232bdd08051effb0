"""docs/cli.md says of every command what the command itself says, and commands are alike."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from viiwork_core.cli.main import COMMANDS, cli
from viiwork_core.testing import commands_page

ROOT = Path(__file__).parents[2]
ASKING = ("alias", "down", "drain", "key", "kv", "models", "prompts", "status", "top", "undrain", "up", "why")
ALONE = {"key entry"}
"""Beside those that ask, and asks nobody."""


def leaves(command: click.Command, name: str) -> list[tuple[str, click.Command]]:
    """The commands that do something, with their whole names."""
    if not isinstance(command, click.Group):
        return [(name, command)]
    ctx = click.Context(command)
    inner = [(one, command.get_command(ctx, one)) for one in command.list_commands(ctx)]
    return [leaf for one, made in inner if made is not None for leaf in leaves(made, f"{name} {one}")]


def all_of(names: tuple[str, ...]) -> list[tuple[str, click.Command]]:
    root = click.Context(cli)
    made = [(name, cli.get_command(root, name)) for name in names]
    return [leaf for name, command in made if command is not None for leaf in leaves(command, name)]


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "cli.md").read_text()
    assert page == commands_page.page(), "the commands have changed: run `make docs`"
    assert {f"## viiwork {name}\n" for name in COMMANDS} <= set(page.splitlines(keepends=True))


def test_the_page_names_those_that_ask_a_node() -> None:
    (told,) = re.findall(r"Commands that ask a node \(([^)]+)\)", (ROOT / "docs" / "cli.md").read_text())
    assert tuple(re.findall(r"`(.+?)`", told)) == ASKING


@pytest.mark.parametrize(("name", "command"), [leaf for leaf in all_of(ASKING) if leaf[0] not in ALONE])
def test_commands_that_ask_a_node_are_asked_alike(name: str, command: click.Command) -> None:
    options = {one for param in command.params for one in param.opts}
    assert {"--config", "--node", "--secret-env", "--json"} <= options, name


@pytest.mark.parametrize(("name", "command"), all_of(tuple(sorted(COMMANDS))))
def test_each_command_and_option_says_what_it_is(name: str, command: click.Command) -> None:
    assert command.help, name
    known = {"--log-level"}  # its choices say it all
    silent = [param.opts for param in command.params if isinstance(param, click.Option) and not param.help]
    assert not [opts for opts in silent if not known & set(opts)], name


def test_make_docs_writes_it() -> None:
    command = "$(BIN)/python -m viiwork_core.testing.commands_page docs/cli.md"
    assert command in (ROOT / "Makefile").read_text()
