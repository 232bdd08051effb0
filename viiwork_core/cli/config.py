"""viiwork config: the configuration without starting anything."""

from __future__ import annotations

import asyncio
import json as jsonlib
import os
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import click

from viiwork_core.config import paths
from viiwork_core.config.descriptions import JsonSchema, PluginBlocks, describe, json_schema
from viiwork_core.config.document import dump
from viiwork_core.config.effective import effective
from viiwork_core.config.load import find_config
from viiwork_core.config.masks import Masks
from viiwork_core.config.problems import Location
from viiwork_core.config.reference import reference
from viiwork_core.config.schema import Config, MeshConfig
from viiwork_core.contracts.capabilities import Attaches
from viiwork_core.contracts.options import PluginOptions
from viiwork_core.errors import PluginError
from viiwork_core.observe.logging import setup_logging
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.guard import attempt
from viiwork_core.registry.options import OF_A_PROCESS, Resolved, resolve
from viiwork_core.registry.reading import read_config
from viiwork_core.registry.registry import Registry


@click.group()
def config() -> None:
    """Look at the configuration."""


@config.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
def check(file: Path | None) -> None:
    """Read FILE, or the file of the usual places, with the installed plugins; print every problem, or a summary.

    What engines say about starting its models on this machine is a warning: it may be meant for another one.
    """
    registry = load_plugins(os.environ)
    found = _found() if file is None else None
    read = read_config(file or found, os.environ, registry)
    resolved = resolve(read, registry)
    _warn(read, registry)
    if resolved.models:
        _warn_of_starts(read, resolved)
    click.echo(f"ok: {f'{found}: ' if found else ''}{_summary(read, resolved)}")


@config.command()
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option("--json", is_flag=True, help="Print a JSON object instead of YAML.")
def show(file: Path | None, *, json: bool) -> None:
    """Print the value of every key in FILE, or the file of the usual places, and each backend's command line.

    Secrets are masked. Nothing is started but the engines' programs for their version and flags.
    """
    # Imported here: the other commands need nothing of a node.
    from viiwork_core.cli.command_lines import command_lines

    file = find_config(os.environ) if file is None else file
    read = read_config(file, os.environ)
    setup_logging(json, "warning", node=read.node.name)
    registry = load_plugins(os.environ)
    resolved = resolve(read, registry)
    _warn(read, registry)
    values = effective(read, dict(_blocks(read, resolved)), _meaningless(resolved), Masks(os.environ))
    lines = asyncio.run(command_lines(read, resolved, os.environ))
    if json:
        backends = [asdict(line) for line in lines]
        shown = {"file": None if file is None else str(file), "config": values, "backends": backends}
        click.echo(jsonlib.dumps(shown, indent=2, ensure_ascii=False))
        return
    click.echo(f"# {file or 'no file: all defaults'}\n{dump(values)}", nl=False)
    if lines:
        click.echo("# What would be started; a port of 0 is drawn at each launch:")
    for line in lines:
        click.echo(textwrap.indent(f"{line.backend}: {line.shown()}", "# ", lambda _: True))
        for advice in line.advice:
            click.echo(f"#   {advice}")


@config.command()
def schema() -> None:
    """Print a JSON schema of the configuration, with the blocks of all installed plugins."""
    click.echo(jsonlib.dumps(_schema(load_plugins(os.environ)), indent=2, ensure_ascii=False))


@config.command()
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False))
def docs(file: Path) -> None:
    """Write the reference of all keys, as Markdown, into FILE."""
    page = reference(_schema(load_plugins(os.environ)))
    file.write_text(page, encoding="utf-8")


def _found() -> Path | None:
    """The file that `viiwork serve` would read. None, after a warning: it would go by the defaults."""
    found = find_config(os.environ)
    if found is None:
        places = ", ".join(map(str, paths.config_files(os.environ)))
        said = f"no configuration in {places}: the defaults are checked; `viiwork init` writes one"
        click.echo(f"warning: {said}", err=True)
    return found


def _warn(read: Config, registry: Registry) -> None:
    unused = (f"plugin {record.entry_point} failed to load: {record.reason}" for record in registry.failed)
    for warning in (*read.warnings, *unused):
        click.echo(f"warning: {warning}", err=True)


def _warn_of_starts(read: Config, resolved: Resolved) -> None:
    # Imported here: nothing else that is checked needs anything of a node.
    from viiwork_core.cli.command_lines import command_lines

    setup_logging(json=False, level="warning", node=read.node.name)
    said = dict[str, list[str]]()
    for line in asyncio.run(command_lines(read, resolved, os.environ)):
        for warning in line.warnings():
            said.setdefault(warning, []).append(line.backend)
    for warning, backends in said.items():
        click.echo(f"warning: {', '.join(backends)}: {warning}", err=True)


def _summary(read: Config, resolved: Resolved) -> str:
    models = ", ".join(f"{model.config.name} on {model.engine.name}" for model in resolved.models)
    sources = ", ".join(cls.name for cls, _ in resolved.discoveries)
    return (
        f"node {read.node.name}, models: {models or 'none'}, policy: {resolved.policy.name}, "
        f"discovery: {sources or 'none'}"
    )


def _blocks(read: Config, resolved: Resolved) -> Iterator[tuple[Location, Mapping[str, Any]]]:
    """Plugins' options, each where its block stands or would stand; blocks that nobody wrote only if they have keys."""
    options: dict[Location, PluginOptions] = {("routing", resolved.policy.name): resolved.policy_options}
    for cls, its in resolved.discoveries:
        if cls.name not in MeshConfig.model_fields:
            key = next((key for key in read.mesh.blocks if key in cls.networks), cls.name)
            options["mesh", key] = its
    options |= {("listeners", cls.name): its for cls, its in resolved.listeners}
    for index, model in enumerate(resolved.models):
        options["models", index, model.engine.name] = model.options
    for where, its in options.items():
        values = attempt(f"writing the options {where[-1]}", partial(its.model_dump, mode="json", by_alias=True))
        if values:
            yield where, values


def _meaningless(resolved: Resolved) -> Iterator[Location]:
    for index, model in enumerate(resolved.models):
        if issubclass(model.engine, Attaches):
            yield from (("models", index, key) for key in OF_A_PROCESS)


def _schema(registry: Registry) -> JsonSchema:
    engines = {name: registry.engine(name).Options for name in registry.names("engine")}
    policies = {name: registry.policy(name).Options for name in registry.names("policy")}
    # mesh.seeds is the core's own key, a list.
    names = [name for name in registry.names("discovery") if name not in MeshConfig.model_fields]
    sources = {name: registry.discovery(name) for name in names}
    networks = {network for cls in sources.values() for network in cls.networks} - sources.keys()
    serving = {network: registry.discoveries(network) for network in sorted(networks)}
    return json_schema(
        PluginBlocks(
            engines={name: _described(name, cls) for name, cls in engines.items()},
            policies={name: _described(name, cls) for name, cls in policies.items()},
            discoveries={name: _described(name, cls.Options) for name, cls in sources.items()},
            listeners={name: _described(name, registry.listener(name).Options) for name in registry.names("listener")},
            networks={network: classes[0].name for network, classes in serving.items() if len(classes) == 1},
        )
    )


def _described(name: str, options: type[PluginOptions]) -> JsonSchema:
    try:
        return attempt(f"describing the options of {name}", lambda: describe(options))
    except PluginError as error:
        click.echo(f"warning: {error.message}", err=True)
        return {"type": "object"}
