"""viiwork doctor, also called accept: everything that can be wrong with this machine and its node, looked at in turn.

Exit status: 0 when all is well, 1 when there are warnings, 2 when there are problems.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from viiwork_core.cli.doctor.api import Api, NotLetIn
from viiwork_core.cli.doctor.binaries import binaries
from viiwork_core.cli.doctor.caches import caches
from viiwork_core.cli.doctor.clock import clock
from viiwork_core.cli.doctor.configuration import configuration, files, refusals
from viiwork_core.cli.doctor.gpus import gpus
from viiwork_core.cli.doctor.mesh import mesh
from viiwork_core.cli.doctor.models import models
from viiwork_core.cli.doctor.node import node
from viiwork_core.cli.doctor.plugins import plugins
from viiwork_core.cli.doctor.port_commands import ports as ports_group
from viiwork_core.cli.doctor.ports import ports
from viiwork_core.cli.doctor.report import Report
from viiwork_core.cli.doctor.saturation import saturation
from viiwork_core.cli.doctor.situation import Check, Machine, Running, Situation, ok, problem, warning
from viiwork_core.cli.doctor.telemetry import telemetry
from viiwork_core.cli.operator import Operator, credentials, signer_of
from viiwork_core.config.env_file import with_env_file
from viiwork_core.config.load import find_config, load_config
from viiwork_core.config.running import dialled
from viiwork_core.config.schema import Config
from viiwork_core.contracts.doctor import Finding
from viiwork_core.errors import ConfigError, ViiworkError
from viiwork_core.observe.logging import setup_logging
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.options import resolve
from viiwork_core.security.signing import Signer

CHECKS: Final[dict[str, Check]] = {
    "config": configuration,
    "files": files,
    "binaries": binaries,
    "gpus": gpus,
    "node": node,
    "ports": ports,
    "clock": clock,
    "telemetry": telemetry,
    "mesh": mesh,
    "models": models,
    "kv_share": caches,
    "saturate": saturation,
}
PLUGINS: Final = "plugins"
SATURATE: Final = "saturate"
NODE: Final = "node"


@dataclass(frozen=True)
class Wishes:
    """What the operator said."""

    file: Path | None
    url: str | None
    topics: tuple[str, ...]
    timeout: float
    environ: Mapping[str, str]
    """This command's, and what the file beside the configuration adds to it."""


@click.group(invoke_without_command=True)
@click.option("--config", "file", type=click.Path(path_type=Path), help="This machine's configuration.")
@click.option("--url", help="Look at the node at http://HOST:PORT and its mesh only, not at this machine.")
@click.option("--only", multiple=True, type=click.Choice([*CHECKS, PLUGINS]), help="Only this topic; may be repeated.")
@click.option("--saturate", is_flag=True, help="Also fill all slots of each model of the node, for some seconds.")
@click.option("--timeout", type=click.FloatRange(min=1), default=120.0, help="Seconds that one answer may take; 120.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list: topic, level, what, remedy.")
@click.pass_context
def doctor(
    ctx: click.Context,
    file: Path | None,
    url: str | None,
    only: tuple[str, ...],
    timeout: float,
    *,
    saturate: bool,
    as_json: bool,
) -> None:
    """Look for what is wrong with this machine and its node, and say what to do about it.

    Without a node it looks for what would keep one from running. Of a node that runs, it also asks each model for short
    answers, here and through other members. It changes nothing. Exits with 0 when all is well, 1 when there are
    warnings, 2 when there are problems.
    """
    if ctx.invoked_subcommand is not None:
        return
    wanted = only or tuple(name for name in (*CHECKS, PLUGINS) if name != SATURATE)
    topics = tuple(dict.fromkeys((*wanted, *([SATURATE] if saturate else []))))
    setup_logging(json=False, level="critical")
    environ = _environ(file)
    report = Report(environ, as_json=as_json)
    asyncio.run(_look(Wishes(file, url, topics, timeout, environ), report))
    sys.exit(report.end())


doctor.add_command(ports_group)


def _environ(file: Path | None) -> Mapping[str, str]:
    try:
        return with_env_file(os.environ, file or find_config(os.environ))
    except ConfigError:
        # Not this user's to read, or no configuration at all, which is found out below.
        return os.environ


async def _look(wishes: Wishes, report: Report) -> None:
    machine, config = None, None
    try:
        config = load_config(wishes.file, wishes.environ)
        if wishes.url is None:
            registry = load_plugins(wishes.environ)
            machine = Machine(config, registry, resolve(config, registry))
    except ConfigError as error:
        # A node may run with an older version of the file, and is looked at all the same.
        report.add("config", refusals(error, wishes.file))
    async with AsyncExitStack() as stack:
        running = await _running(wishes, config, stack, report)
        situation = Situation(wishes.environ, wishes.timeout, machine, running, frozenset(wishes.topics))
        for topic in (name for name in CHECKS if name in wishes.topics):
            report.add(topic, await _checked(CHECKS[topic], situation))
        if PLUGINS in wishes.topics:
            for name, found in await plugins(situation):
                report.add(name, found)
        if not report.told:
            report.add(NODE, [ok("nothing of that can be looked at while no node runs")])


async def _checked(check: Check, situation: Situation) -> Sequence[Finding]:
    try:
        return await check(situation)
    except NotLetIn as error:
        return [error.finding]
    except ViiworkError as error:
        return [problem(error.message, error.remedy or "see the node's log, and try again")]


async def _running(wishes: Wishes, config: Config | None, stack: AsyncExitStack, report: Report) -> Running | None:
    """The node that is meant, if it answers; a finding where one should."""
    try:
        url = dialled(_url(wishes, config))
    except ViiworkError as error:
        if wishes.url is not None:
            report.add(NODE, [problem(error.message, error.remedy or "write http://HOST:PORT")])
        elif config is not None and NODE in wishes.topics:
            report.add(NODE, [ok("no node runs here: what needs one is left out")])
        return None
    state_dir = config.node.state_dir if wishes.url is None and config is not None else None
    try:
        shown = credentials(state_dir)
    except ConfigError as error:
        report.add(NODE, [problem(error.message, error.remedy)])
        return None
    api = await stack.enter_async_context(Api(url, wishes.timeout, shown, _signer(wishes, config)))
    try:
        status, cluster = await api.get("/v1/status"), await api.get("/v1/cluster")
    except NotLetIn as error:
        report.add(NODE, [error.finding])
        return None
    except ViiworkError as error:
        if wishes.url is not None:
            report.add(NODE, [problem(error.message, "see that a node runs there, and that its port is reached")])
        else:
            what = f"the node that is noted in node.state_dir does not answer: {error.message}"
            report.add(NODE, [warning(what, "start it again; see in its log why it ended")])
        return None
    api.members = {str(one["addr"]): str(one["node_id"]) for one in cluster["members"] if one.get("addr")}
    return Running(api, status, cluster)


def _signer(wishes: Wishes, config: Config | None) -> Signer | None:
    """Of who has the mesh's secret; None without one, or with one that is malformed, which `mesh` tells."""
    with suppress(ConfigError):
        return None if config is None or config.mesh.open else signer_of(wishes.environ, config.mesh.secret_env)
    return None


def _url(wishes: Wishes, config: Config | None) -> str:
    if wishes.url is not None:
        return Operator.checked(wishes.url)
    if config is None:
        raise ConfigError("the configuration cannot be read")
    return Operator.here(config).api
