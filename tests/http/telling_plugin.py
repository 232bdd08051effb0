"""A listener that writes down what it is told, and commands. A stranger's plugin."""

from __future__ import annotations

import json
from typing import ClassVar

import click

from viiwork_core import ConfigError, EventType, Listener, NodeEvent, PluginOptions, hookimpl

VIIWORK_API = (1, 2)


class WrittenOptions(PluginOptions):
    """The block `written` of `listeners`."""

    prefix: str = ""


class Written(Listener):
    """A line of JSON for each event, in a file of its own folder."""

    name: ClassVar[str] = "written"
    types: ClassVar[frozenset[EventType]] = frozenset({EventType.SYSTEM, EventType.REQUEST})
    Options: ClassVar[type[PluginOptions]] = WrittenOptions

    async def on(self, event: NodeEvent) -> None:
        assert isinstance(self.options, WrittenOptions)
        line = {"message": self.options.prefix + event.message, "type": event.type, "rid": event.request_id}
        with (self.context.state_dir / "events").open("a") as file:
            file.write(json.dumps(line) + "\n")


class Raises(Listener):
    """Fails over everything."""

    name: ClassVar[str] = "raises"
    types: ClassVar[frozenset[EventType]] = frozenset(EventType)

    async def on(self, event: NodeEvent) -> None:
        raise SystemExit(3)


@click.command()
@click.option("--loud", is_flag=True)
def hello(*, loud: bool) -> None:
    """Greet."""
    click.echo("HELLO" if loud else "hello")


@click.command()
def refuse() -> None:
    """Fail on purpose."""
    raise ConfigError("not today", remedy="come tomorrow")


@click.command(name="status")
def mine() -> None:
    """A name that is taken."""


@hookimpl
def viiwork_register_listener() -> list[type[Listener]]:
    return [Written, Raises]


@hookimpl
def viiwork_register_command() -> list[click.Command]:
    return [hello, refuse, mine]
