"""The viiwork command: its root, and the one place where errors become text for a terminal."""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from typing import Any, Final

import click

from viiwork_core.cli.failure import Failure
from viiwork_core.contracts.version import API_MAJOR, API_MINOR
from viiwork_core.errors import ViiworkError

# Imported when named: a command that only prints must not wait for the server's libraries.
_COMMANDS: Final = {
    "accept": "doctor.command:doctor",
    "alias": "alias:alias",
    "completion": "completion:completion",
    "config": "config:config",
    "doctor": "doctor.command:doctor",
    "down": "parking:down",
    "drain": "drain:drain",
    "init": "init:init",
    "join-code": "join_code:join_code",
    "key": "key:key",
    "kv": "kv:kv",
    "models": "status:models",
    "plugin": "plugin:plugin",
    "prompts": "prompt_history:prompts",
    "serve": "serve:serve",
    "simulate": "simulate:simulate",
    "status": "status:status",
    "top": "top.command:top",
    "undrain": "drain:undrain",
    "uninstall": "uninstall:uninstall",
    "up": "parking:up",
    "why": "why:why",
}
"""Where each command stands: module of this package, and name in it."""


COMMANDS = frozenset(_COMMANDS)
"""The names of viiwork's own commands."""


def _own(name: str) -> click.Command:
    module, _, attribute = _COMMANDS[name].partition(":")
    command: click.Command = getattr(import_module(f"viiwork_core.cli.{module}"), attribute)
    return command


class Root(click.Group):
    """Finds commands when they are named, viiwork's own first, and turns errors raised on purpose into a Failure."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _COMMANDS:
            return _own(cmd_name)
        try:
            return self._of_plugins(cmd_name)
        except ViiworkError:
            if ctx.resilient_parsing:
                return None  # a shell that completes has no place for an error
            raise

    @staticmethod
    def _of_plugins(name: str) -> click.Command | None:
        from viiwork_core.cli.plugin_commands import command

        return command(name, COMMANDS)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ViiworkError as error:
            raise Failure(error) from error


@click.command(cls=Root)
@click.version_option(
    package_name="viiwork",
    prog_name="viiwork",
    message=f"%(prog)s %(version)s (plugin API {API_MAJOR}.{API_MINOR})",
)
def cli() -> None:
    """A few GPU machines, one OpenAI-compatible endpoint.

    Plugins may add commands: `viiwork plugin list` shows them.
    """


def main() -> None:
    """Entry point of the console script."""
    if sys.argv[1:2] == ["serve"]:
        # `serve` hears it once it is imported, and reads the configuration after that: nothing is lost until then.
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    cli(prog_name="viiwork")
