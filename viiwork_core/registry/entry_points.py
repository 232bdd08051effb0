"""Loading plugins: one entry point at a time, so that the failure of one harms no other."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from viiwork_core import hookspecs
from viiwork_core.config.problems import near_miss
from viiwork_core.contracts.cache import CacheTransfer
from viiwork_core.contracts.discovery import Discovery
from viiwork_core.contracts.doctor import DoctorCheck
from viiwork_core.contracts.engine import Engine, Wire
from viiwork_core.contracts.listener import EventType, Listener
from viiwork_core.contracts.options import PluginOptions
from viiwork_core.contracts.policy import Policy
from viiwork_core.contracts.version import API_MAJOR, API_MINOR
from viiwork_core.errors import PluginError, ViiworkError
from viiwork_core.registry.guard import attempt
from viiwork_core.registry.registry import NAME, Kind, Loaded, LoadRecord, Offer, Registry

__all__ = ["LoadRecord", "load_plugins"]

_BUILTIN = ("viiwork", "builtin")
"""Distribution and entry point of the core's own plugin, which is always loaded."""


@dataclass(frozen=True, slots=True)
class _Hook:
    name: str
    kind: Kind
    base: type
    named_by: str
    """The class attribute that holds the name."""


_HOOKS = (
    _Hook("viiwork_register_engine", "engine", Engine, "name"),
    _Hook("viiwork_register_discovery", "discovery", Discovery, "name"),
    _Hook("viiwork_register_policy", "policy", Policy, "name"),
    _Hook("viiwork_register_cache_transfer", "cache", CacheTransfer, "engine"),
    _Hook("viiwork_register_doctor_check", "doctor", DoctorCheck, "name"),
    _Hook("viiwork_register_listener", "listener", Listener, "name"),
)

_COMMAND = "viiwork_register_command"
"""The hook that is asked where commands are looked for, and never in a node."""


def load_plugins(environ: Mapping[str, str], *, own_commands: Collection[str] | None = None) -> Registry:
    """Everything that installed distributions offer under the entry point group "viiwork".

    `own_commands`: the names of viiwork's own commands, where plugins are asked for theirs; None: they are not.
    VIIWORK_PLUGINS=a,b loads only these entry points, VIIWORK_BLOCK=c all but these. Never raises for a plugin: what
    became of each stands in Registry.records.
    """
    chosen = _listed(environ["VIIWORK_PLUGINS"]) if "VIIWORK_PLUGINS" in environ else None
    blocked = _listed(environ.get("VIIWORK_BLOCK", ""))
    found = sorted(entry_points(group=hookspecs.PROJECT), key=lambda point: (_origin(point) != _BUILTIN, point.name))
    names = {point.name for point in found}
    lists = (("VIIWORK_PLUGINS", chosen or frozenset()), ("VIIWORK_BLOCK", blocked))
    stray = (_nowhere(name, where, names) for where, listed in lists for name in sorted(listed - names))
    commands = own_commands is not None
    loaded = (_load(point, chosen, blocked, commands=commands) for point in found)
    return Registry([*loaded, *stray], own_commands or ())


def _nowhere(name: str, where: str, names: Iterable[str]) -> Loaded:
    """A name in one of the lists that no installed distribution has: without a word a slip would change the set."""
    reason = "; ".join(
        filter(None, (f"{where} names {name}, and nothing installed is called so", near_miss(name, names)))
    )
    return Loaded(LoadRecord("", "", name, "failed", reason=reason))


def _listed(names: str) -> frozenset[str]:
    return frozenset(filter(None, (name.strip() for name in names.split(","))))


def _origin(point: EntryPoint) -> tuple[str, str]:
    return (point.dist.name if point.dist is not None else "unknown"), point.name


def _load(point: EntryPoint, chosen: frozenset[str] | None, blocked: frozenset[str], *, commands: bool) -> Loaded:
    version = point.dist.version if point.dist is not None else ""
    record = LoadRecord(_origin(point)[0], version, point.name, "loaded")
    if _origin(point) != _BUILTIN:
        if point.name in blocked:
            return Loaded(replace(record, state="blocked", reason="named in VIIWORK_BLOCK"))
        if chosen is not None and point.name not in chosen:
            return Loaded(replace(record, state="not chosen", reason="not named in VIIWORK_PLUGINS"))
    collection = _Collection(point)
    try:
        collection.collect(commands=commands)
    except ViiworkError as error:
        record = replace(record, state="failed", reason=error.message)
    offers = tuple(collection.offers)
    record = replace(record, api=collection.api, provides=tuple((offer.kind, offer.name) for offer in offers))
    return Loaded(record, offers if record.state == "loaded" else ())


class _Collection:
    """One plugin on its way in. What it got to before it failed stays readable."""

    def __init__(self, point: EntryPoint) -> None:
        self._point = point
        self.api: tuple[int, int] | None = None
        self.offers: list[Offer] = []

    def collect(self, *, commands: bool) -> None:
        """Import, register, ask each hook. Raises PluginError."""
        module = attempt("import", self._point.load)
        self.api = _api(module)
        manager = pluggy.PluginManager(hookspecs.PROJECT)
        manager.add_hookspecs(hookspecs)
        attempt("registration", lambda: manager.register(module, self._point.name))
        attempt("registration", manager.check_pending)
        for hook in _HOOKS:
            results = attempt(hook.name, getattr(manager.hook, hook.name))
            self.offers.extend(_offers(hook, results))
        if commands:
            self.offers.extend(_commands(attempt(_COMMAND, getattr(manager.hook, _COMMAND))))


def _api(module: object) -> tuple[int, int] | None:
    stated = getattr(module, "VIIWORK_API", None)
    if stated is None:
        return None
    if not (isinstance(stated, tuple) and [type(part) for part in stated] == [int, int]):
        raise PluginError("VIIWORK_API is not a pair of numbers, such as (1, 0)")
    if stated[0] != API_MAJOR or stated[1] > API_MINOR:
        older = "viiwork" if stated > (API_MAJOR, API_MINOR) else "the plugin"
        raise PluginError(
            f"it is written for plugin API {stated[0]}.{stated[1]}, and this viiwork has {API_MAJOR}.{API_MINOR}: "
            f"update {older}"
        )
    return stated


def _offers(hook: _Hook, results: Any) -> Iterator[Offer]:
    """The classes in what a hook returned: a class or a list of them, once for each implementation."""
    for result in results if isinstance(results, list) else [results]:
        for cls in result if isinstance(result, (list, tuple)) else [result]:
            yield _offer(hook, cls)


def _commands(results: Any) -> Iterator[Offer]:
    """The commands in what the hook returned."""
    import click  # here, where commands are looked for: a node needs none

    for result in results:
        for command in result if isinstance(result, (list, tuple)) else [result]:
            if not isinstance(command, click.Command):
                raise PluginError(f"{_COMMAND} returned an object of type {type(command).__name__}, and no command")
            if not (isinstance(command.name, str) and NAME.fullmatch(command.name)):
                raise PluginError(f"the command {command.name!r} is not called by a lowercase word")
            yield Offer("command", command.name, command)


def _offer(hook: _Hook, cls: object) -> Offer:
    if inspect.iscoroutine(cls):
        cls.close()
        raise PluginError(f"{hook.name} is a coroutine function; hooks are plain functions")
    if not (isinstance(cls, type) and issubclass(cls, hook.base)):
        shown = cls.__name__ if isinstance(cls, type) else f"an object of type {type(cls).__name__}"
        raise PluginError(f"{hook.name} returned {shown}, which is no subclass of {hook.base.__name__}")
    if missing := sorted(getattr(cls, "__abstractmethods__", ())):
        raise PluginError(f"{cls.__name__} does not implement {', '.join(missing)}")
    name = getattr(cls, hook.named_by, None)
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise PluginError(f"{cls.__name__}.{hook.named_by} is not a lowercase word")
    if hook.kind == "engine" and not isinstance(getattr(cls, "wire", None), Wire):
        raise PluginError(f"{cls.__name__}.wire is not a Wire")
    if hook.kind == "listener" and not _event_types(getattr(cls, "types", None)):
        raise PluginError(f"{cls.__name__}.types is not a set of EventTypes with something in it")
    options = getattr(cls, "Options", PluginOptions)
    if not (isinstance(options, type) and issubclass(options, PluginOptions)):
        raise PluginError(f"{cls.__name__}.Options is no subclass of PluginOptions")
    return Offer(hook.kind, name, cls)


def _event_types(types: object) -> bool:
    return isinstance(types, AbstractSet) and bool(types) and all(isinstance(one, EventType) for one in types)
