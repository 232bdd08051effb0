"""Commands that plugins add to `viiwork`. Loaded when somebody names one that is none of viiwork's own."""

from __future__ import annotations

import os
from collections.abc import Collection

import click

from viiwork_core.errors import ViiworkError
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.registry import Registry


def registry(own: Collection[str]) -> Registry:
    """The plugins with their commands. `own`: the names of viiwork's."""
    return load_plugins(os.environ, own_commands=own)


def command(name: str, own: Collection[str]) -> click.Command | None:
    """A plugin's command; None: no plugin has one of that name. Raises ViiworkError where that may be a failure."""
    found = registry(own)
    if (made := found.command(name)) is not None:
        return made
    failed = [f"{one.distribution or one.entry_point}: {one.reason}" for one in found.failed]
    if failed:
        remedy = "see `viiwork plugin list`, and `viiwork --help` for viiwork's own commands"
        raise ViiworkError(f"no command {name}; plugins failed to load: {'; '.join(failed)}", remedy=remedy)
    return None
