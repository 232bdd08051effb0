"""The hooks: how a distribution offers its classes. They run once, when plugins load, and only collect.

A plugin is a module named by an entry point of group "viiwork". It implements any of these with `hookimpl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

from viiwork_core.contracts.cache import CacheTransfer
from viiwork_core.contracts.discovery import Discovery
from viiwork_core.contracts.doctor import DoctorCheck
from viiwork_core.contracts.engine import Engine
from viiwork_core.contracts.listener import Listener
from viiwork_core.contracts.policy import Policy

if TYPE_CHECKING:
    import click

PROJECT = "viiwork"
"""Name of the pluggy project and of the entry point group."""

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def viiwork_register_engine() -> type[Engine] | list[type[Engine]]:  # type: ignore[empty-body]  # a spec has no body
    """Add engines that `models[].engine` can name.

    When: once, while plugins load, before the configuration's plugin blocks are read.
    Thread: the main thread; no event loop runs.
    Returns: a subclass of Engine, or a list of them. Each has a `name` of its own.
    If it raises: the plugin is marked failed with the reason, and nothing else is harmed; a configuration that uses
    the engine does not start.
    Since: API 1.0.
    """


@hookspec
def viiwork_register_discovery() -> type[Discovery] | list[type[Discovery]]:  # type: ignore[empty-body]  # a spec
    """Add sources that find other nodes.

    When: once, while plugins load, before the configuration's plugin blocks are read.
    Thread: the main thread; no event loop runs.
    Returns: a subclass of Discovery, or a list of them.
    If it raises: the plugin is marked failed with the reason, and nothing else is harmed.
    Since: API 1.0.
    """


@hookspec
def viiwork_register_policy() -> type[Policy] | list[type[Policy]]:  # type: ignore[empty-body]  # a spec has no body
    """Add routing policies that `routing.policy` can name.

    When: once, while plugins load, before the configuration's plugin blocks are read.
    Thread: the main thread; no event loop runs.
    Returns: a subclass of Policy, or a list of them.
    If it raises: the plugin is marked failed with the reason, and nothing else is harmed; a configuration that names
    the policy does not start.
    Since: API 1.0.
    """


@hookspec
def viiwork_register_cache_transfer() -> type[CacheTransfer] | list[type[CacheTransfer]]:  # type: ignore[empty-body]
    """Add the cache transfer of an engine, which `models[].kv_share` needs.

    When: once, while plugins load, before the configuration's plugin blocks are read.
    Thread: the main thread; no event loop runs.
    Returns: a subclass of CacheTransfer, or a list of them, each naming the engine it serves.
    If it raises: the plugin is marked failed with the reason, and nothing else is harmed; a configuration that turns
    kv_share on for that engine does not start.
    Since: API 1.0.
    """


@hookspec
def viiwork_register_doctor_check() -> type[DoctorCheck] | list[type[DoctorCheck]]:  # type: ignore[empty-body]  # a spec
    """Add checks to `viiwork doctor`.

    When: once, while plugins load, in every program that loads them; only `viiwork doctor` runs the checks.
    Thread: the main thread; no event loop runs.
    Returns: a subclass of DoctorCheck, or a list of them. Each has a `name` of its own.
    If it raises: the plugin is marked failed with the reason, and nothing else is harmed; `viiwork doctor` tells it.
    Since: API 1.1.
    """


@hookspec
def viiwork_register_listener() -> type[Listener] | list[type[Listener]]:  # type: ignore[empty-body]  # a spec
    """Add listeners, which receive this node's events while `listeners` of the configuration names them.

    When: once, while plugins load, before the configuration's plugin blocks are read.
    Thread: the main thread; no event loop runs. The listener itself lives on the control loop.
    Returns: a subclass of Listener, or a list of them. Each has a `name` of its own.
    If it raises: the plugin is marked failed with the reason, and nothing else is harmed; a configuration that names
    the listener does not start.
    Since: API 1.2.
    """


@hookspec
def viiwork_register_command() -> click.Command | list[click.Command]:  # type: ignore[empty-body]  # a spec has no body
    """Add commands to `viiwork`.

    When: once, when somebody names a command that is none of viiwork's own, or looks at the plugins; never in a node.
    Thread: the main thread; no event loop runs.
    Returns: a click.Command, or a list of them. Each has a `name` of its own, which none of viiwork's commands has. A
    ViiworkError that it raises when it runs is shown as message and remedy, with exit status 1.
    If it raises: the plugin is marked failed with the reason, which is shown to anybody who names a command that is
    not found; all other commands work.
    Since: API 1.2.
    """
