"""The viiwork command: its root, and the one place where errors become text for a terminal."""

from __future__ import annotations

import signal
import sys
from importlib import import_module
from typing import Any, Final, NamedTuple

import click
from click.shell_completion import CompletionItem

from viiwork_core.cli.failure import Failure
from viiwork_core.contracts.version import API_MAJOR, API_MINOR
from viiwork_core.errors import ViiworkError


class _Own(NamedTuple):
    """Where a command of viiwork's own stands, and what it does in one line of help."""

    place: str
    summary: str


# Imported when named: a command that only prints must not wait for the server's libraries, and neither must the list
# of commands, which is why their summaries stand here.
_OWN: Final = {
    "accept": _Own("doctor.command:doctor", "The same as doctor."),
    "alias": _Own("alias:alias", "Further names for models, the same on every node."),
    "completion": _Own("completion:completion", "Print what a shell reads to complete commands and names."),
    "config": _Own("config:config", "Check the configuration, show it, describe its keys."),
    "doctor": _Own("doctor.command:doctor", "Say what is wrong here and in the mesh, and what to do."),
    "down": _Own("parking:down", "Take models of a node down."),
    "drain": _Own("drain:drain", "Take no new work, let what runs finish, move the sessions."),
    "init": _Own("init:init", "Set this machine up as a node."),
    "join-code": _Own("join_code:join_code", "Print the code by which another machine joins this mesh."),
    "key": _Own("key:key", "API keys: who may use the models, and how much."),
    "kv": _Own("kv:kv", "The caches of sessions, and what moving them brought."),
    "models": _Own("status:models", "List the models that clients may ask for."),
    "plugin": _Own("plugin:plugin", "List the installed plugins, begin one, check one."),
    "prompts": _Own("prompt_history:prompts", "List what is kept of what clients asked."),
    "serve": _Own("serve:serve", "Run this machine's node until it is stopped."),
    "simulate": _Own("simulate:simulate", "Run a scenario under a routing policy, in virtual time."),
    "status": _Own("status:status", "Show a node, its models and the members of its mesh."),
    "top": _Own("top.command:top", "Watch the mesh in the terminal."),
    "undrain": _Own("drain:undrain", "Take requests on this node again."),
    "uninstall": _Own("uninstall:uninstall", "Remove what `viiwork init` wrote."),
    "up": _Own("parking:up", "Start models that were taken down."),
    "why": _Own("why:why", "Show why a request went where it went."),
}

COMMANDS = frozenset(_OWN)
"""The names of viiwork's own commands."""


def _own(name: str) -> click.Command:
    module, _, attribute = _OWN[name].place.partition(":")
    command: click.Command = getattr(import_module(f"viiwork_core.cli.{module}"), attribute)
    return command


class Root(click.Group):
    """Finds commands when they are named, viiwork's own first, and turns errors raised on purpose into a Failure."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(_OWN)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _OWN:
            return _own(cmd_name)
        try:
            return self._of_plugins(cmd_name)
        except ViiworkError:
            if ctx.resilient_parsing:
                return None  # a shell that completes has no place for an error
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, _OWN[name].summary) for name in self.list_commands(ctx)])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        names = [name for name in self.list_commands(ctx) if name.startswith(incomplete)]
        own = [CompletionItem(name, help=_OWN[name].summary) for name in names]
        return [*own, *click.Command.shell_complete(self, ctx, incomplete)]

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
