"""The viiwork command: its root, and the one place where errors become text for a terminal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from typing import IO, Any

import click

from viiwork_core.contracts.version import API_MAJOR, API_MINOR
from viiwork_core.errors import ViiworkError


class Failure(click.ClickException):
    """A ViiworkError as the terminal shows it: message, remedy, exit code 1."""

    def __init__(self, error: ViiworkError) -> None:
        super().__init__(error.message)
        self._remedy = error.remedy

    def show(self, file: IO[Any] | None = None) -> None:
        click.echo(self.message, err=file is None, file=file)
        if self._remedy:
            click.echo(f"remedy: {self._remedy}", err=file is None, file=file)


def _serve() -> click.Command:
    from viiwork_core.cli.serve import serve

    return serve


def _plugin() -> click.Command:
    from viiwork_core.cli.plugin import plugin

    return plugin


def _alias() -> click.Command:
    from viiwork_core.cli.alias import alias

    return alias


def _config() -> click.Command:
    from viiwork_core.cli.config import config

    return config


def _doctor() -> click.Command:
    from viiwork_core.cli.doctor.command import doctor

    return doctor


def _down() -> click.Command:
    from viiwork_core.cli.parking import down

    return down


def _drain() -> click.Command:
    from viiwork_core.cli.drain import drain

    return drain


def _completion() -> click.Command:
    from viiwork_core.cli.completion import completion

    return completion


def _join_code() -> click.Command:
    from viiwork_core.cli.join_code import join_code

    return join_code


def _init() -> click.Command:
    from viiwork_core.cli.init import init

    return init


def _simulate() -> click.Command:
    from viiwork_core.cli.simulate import simulate

    return simulate


def _key() -> click.Command:
    from viiwork_core.cli.key import key

    return key


def _kv() -> click.Command:
    from viiwork_core.cli.kv import kv

    return kv


def _models() -> click.Command:
    from viiwork_core.cli.status import models

    return models


def _status() -> click.Command:
    from viiwork_core.cli.status import status

    return status


def _top() -> click.Command:
    from viiwork_core.cli.top.command import top

    return top


def _undrain() -> click.Command:
    from viiwork_core.cli.drain import undrain

    return undrain


def _uninstall() -> click.Command:
    from viiwork_core.cli.uninstall import uninstall

    return uninstall


def _up() -> click.Command:
    from viiwork_core.cli.parking import up

    return up


def _why() -> click.Command:
    from viiwork_core.cli.why import why

    return why


# Imported when named: a command that only prints must not wait for the server's libraries.
_COMMANDS: dict[str, Callable[[], click.Command]] = {
    "accept": _doctor,
    "alias": _alias,
    "completion": _completion,
    "config": _config,
    "doctor": _doctor,
    "down": _down,
    "drain": _drain,
    "init": _init,
    "join-code": _join_code,
    "key": _key,
    "kv": _kv,
    "models": _models,
    "plugin": _plugin,
    "serve": _serve,
    "simulate": _simulate,
    "status": _status,
    "top": _top,
    "undrain": _undrain,
    "uninstall": _uninstall,
    "up": _up,
    "why": _why,
}


COMMANDS = frozenset(_COMMANDS)
"""The names of viiwork's own commands."""


class Root(click.Group):
    """Finds commands when they are named, viiwork's own first, and turns errors raised on purpose into a Failure."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        del ctx
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        make = _COMMANDS.get(cmd_name)
        if make is not None:
            return make()
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
