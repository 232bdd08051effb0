"""How an error raised on purpose ends a command."""

from __future__ import annotations

from typing import IO, Any

import click

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
