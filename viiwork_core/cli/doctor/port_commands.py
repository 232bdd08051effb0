"""viiwork doctor ports: are the ports of a node reached from another machine?

Exit status: 0 when all are, 2 when one is not.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from viiwork_core.cli.doctor.echo import Listening, needed, probe
from viiwork_core.cli.doctor.report import Report
from viiwork_core.config.load import load_config
from viiwork_core.config.schema import Config
from viiwork_core.errors import ConfigError
from viiwork_core.node.addresses import bind
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.options import resolve

TOPIC = "ports"
_PORT = click.IntRange(0, 65535)


def _asking(command: Callable[..., None]) -> Callable[..., None]:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print a JSON list: topic, level, what, remedy."),
        click.option("--gossip-port", type=_PORT, help="Instead of the configuration's mesh.bind_port."),
        click.option("--api-port", type=_PORT, help="Instead of the configuration's api.port."),
        click.option("--config", "file", type=click.Path(path_type=Path), help="The machine's configuration."),
    ):
        command = option(command)
    return command


@click.group()
def ports() -> None:
    """Try the ports of a node from another machine: `serve` there, `probe` here."""


@ports.command()
@_asking
@click.option("--host", help="Listen on this address; left out: where the node would.")
@click.option("--seconds", type=click.FloatRange(min=0), help="Give up after so long; left out: not before Ctrl-C.")
def serve(
    file: Path | None,
    api_port: int | None,
    gossip_port: int | None,
    host: str | None,
    seconds: float | None,
    *,
    as_json: bool,
) -> None:
    """Listen on the ports of this machine's node and echo, until each was reached once. The node must not run."""
    config = load_config(file, os.environ)
    hosts = [host] if host else _hosts(config)
    wanted = needed(*_numbers(config, api_port, gossip_port))
    report = Report(os.environ, as_json=as_json)
    listening = Listening(hosts, say=partial(click.echo, err=True))
    report.add(TOPIC, asyncio.run(listening.serve(wanted, seconds)))
    sys.exit(report.end())


@ports.command("probe")
@click.argument("host")
@_asking
@click.option("--wait", type=click.FloatRange(min=0.1), default=5.0, help="Seconds for each port; 5.")
def probe_(
    host: str, file: Path | None, api_port: int | None, gossip_port: int | None, wait: float, *, as_json: bool
) -> None:
    """Knock at the ports of HOST, where `serve` or a node listens, and tell which arrive."""
    config = load_config(file, os.environ)
    report = Report(os.environ, as_json=as_json)
    report.add(TOPIC, asyncio.run(probe(host, needed(*_numbers(config, api_port, gossip_port)), wait)))
    sys.exit(report.end())


def _numbers(config: Config, api: int | None, gossip: int | None) -> tuple[int, int]:
    return config.api.port if api is None else api, config.mesh.bind_port if gossip is None else gossip


def _hosts(config: Config) -> list[str]:
    """The address that other nodes use: what comes in by loopback proves nothing."""
    found: Any = config.mesh.advertise or config.api.host
    if not found:
        places = bind(config.model_copy(update={"api": config.api.model_copy(update={"port": 0})}), _resolved(config))
        places.close()
        found = places.mesh_host
    if not found:
        raise ConfigError("this node has no address that others reach", remedy="name one with --host")
    return [str(found)]


def _resolved(config: Config) -> Any:
    return resolve(config, load_plugins(os.environ))
