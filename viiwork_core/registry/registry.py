"""What the installed plugins offer: kind and name -> class, each with the record of where it came from."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from viiwork_core.config.problems import near_miss
from viiwork_core.contracts.cache import CacheTransfer
from viiwork_core.contracts.discovery import Discovery
from viiwork_core.contracts.doctor import DoctorCheck
from viiwork_core.contracts.engine import Engine
from viiwork_core.contracts.listener import Listener
from viiwork_core.contracts.policy import Policy
from viiwork_core.errors import ConfigError

if TYPE_CHECKING:
    import click

Kind = Literal["engine", "discovery", "policy", "cache", "doctor", "listener", "command"]
State = Literal["loaded", "failed", "blocked", "not chosen"]

NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")
"""What a plugin may call what it offers."""


@dataclass(frozen=True, slots=True)
class LoadRecord:
    """What became of one plugin."""

    distribution: str
    """Empty: none, for a name that VIIWORK_PLUGINS or VIIWORK_BLOCK made up."""

    version: str
    entry_point: str
    state: State
    reason: str = ""
    """Why it is not loaded, as one sentence."""

    api: tuple[int, int] | None = None
    """The plugin API it says it was written for; None: it does not say."""

    provides: tuple[tuple[str, str], ...] = ()
    """(kind, name) of what it offers, or offered before it failed. A cache transfer's name is its engine's."""


@dataclass(frozen=True, slots=True)
class Offer:
    """One thing that a plugin offers."""

    kind: Kind
    name: str
    cls: Any
    """A class; of a command the object."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A plugin's record and its classes; none unless the record says "loaded"."""

    record: LoadRecord
    offers: tuple[Offer, ...] = ()


class Registry:
    """The classes that the configuration can name. Read-only once made."""

    def __init__(self, plugins: Iterable[Loaded], own_commands: Collection[str] = ()) -> None:
        """`own_commands`: names that no plugin's command may have."""
        plugins = list(plugins)
        owners: dict[tuple[str, str], list[LoadRecord]] = {}
        for plugin in plugins:
            for offer in plugin.offers:
                owners.setdefault((offer.kind, offer.name), []).append(plugin.record)
        twice = {key: records for key, records in owners.items() if len(records) > 1}
        self._refused = {key: _both(key, records) for key, records in twice.items()}
        taken = [key for key in owners if key[0] == "command" and key[1] in own_commands]
        self._refused |= {key: f"viiwork has a command {key[1]} of its own; give it another name" for key in taken}
        self._classes: dict[tuple[str, str], Any] = {
            (offer.kind, offer.name): offer.cls
            for plugin in plugins
            for offer in plugin.offers
            if (offer.kind, offer.name) not in self._refused
        }
        self.records: tuple[LoadRecord, ...] = tuple(
            record for plugin in plugins for record in _split(plugin.record, self._refused)
        )

    def engine(self, name: str) -> type[Engine]:
        """The engine of that name. Raises ConfigError with what is installed and what to install."""
        return cast("type[Engine]", self._find("engine", name))

    def policy(self, name: str) -> type[Policy]:
        """The routing policy of that name. Raises ConfigError."""
        return cast("type[Policy]", self._find("policy", name))

    def discovery(self, name: str) -> type[Discovery]:
        """The discovery of that name. Raises ConfigError."""
        return cast("type[Discovery]", self._find("discovery", name))

    def discoveries(self, network: str) -> tuple[type[Discovery], ...]:
        """The discoveries that mesh.network turns on, by name; none is no error."""
        found = [cast("type[Discovery]", self._classes["discovery", name]) for name in self.names("discovery")]
        return tuple(cls for cls in found if network in {cls.name, *cls.networks})

    def cache_transfer(self, engine_name: str) -> type[CacheTransfer]:
        """The cache transfer that serves an engine. Raises ConfigError."""
        return cast("type[CacheTransfer]", self._find("cache", engine_name))

    def doctor_checks(self) -> tuple[type[DoctorCheck], ...]:
        """What `viiwork doctor` looks at besides, by name."""
        return tuple(cast("type[DoctorCheck]", self._classes["doctor", name]) for name in self.names("doctor"))

    def listener(self, name: str) -> type[Listener]:
        """The listener of that name. Raises ConfigError."""
        return cast("type[Listener]", self._find("listener", name))

    def command(self, name: str) -> click.Command | None:
        """The command of that name; None: no plugin has one."""
        return cast("click.Command | None", self._classes.get(("command", name)))

    def names(self, kind: Kind) -> tuple[str, ...]:
        """The usable names of a kind, sorted."""
        return tuple(sorted(name for of, name in self._classes if of == kind))

    @property
    def failed(self) -> tuple[LoadRecord, ...]:
        """The plugins that failed to load: worth a warning even when nothing names them."""
        return tuple(record for record in self.records if record.state == "failed")

    def _find(self, kind: Kind, name: str) -> Any:
        if (kind, name) in self._classes:
            return self._classes[kind, name]
        if (kind, name) in self._refused:
            raise ConfigError(f"{_TITLES[kind]} {name} cannot be used: {self._refused[kind, name]}")
        for record in self.records:
            if record.state != "loaded" and record.distribution and _would_offer(record, kind, name):
                raise ConfigError(f"{_TITLES[kind]} {name} cannot be used: {_fate(record)}", remedy=_fix(record))
        raise self._unknown(kind, name)

    def _unknown(self, kind: Kind, name: str) -> ConfigError:
        installed = self.names(kind)
        what = f"no {_TITLES[kind]} {name} is installed" if kind != "cache" else f"{name} has no cache transfer"
        message = f"{what} (installed: {', '.join(installed) or 'none'})"
        if self.failed:
            failed = {record.distribution or record.entry_point for record in self.failed}
            message += "; failed to load: " + ", ".join(sorted(failed))
        hints = [near_miss(name, installed), f"pip install {_package(kind, name)}" if NAME.fullmatch(name) else ""]
        return ConfigError(message, remedy=" or ".join(filter(None, hints)))


_TITLES: dict[Kind, str] = {
    "engine": "engine",
    "discovery": "discovery",
    "policy": "routing policy",
    "cache": "cache transfer for engine",
    "doctor": "doctor check",
    "listener": "listener",
    "command": "command",
}


def _package(kind: Kind, name: str) -> str:
    """The distribution that would offer a name, by convention; the core knows no plugin."""
    return ("viiwork-discovery-" if kind == "discovery" else "viiwork-") + name.replace("_", "-")


def _both(key: tuple[str, str], records: list[LoadRecord]) -> str:
    owners = " and ".join(f"{record.distribution} {record.version}" for record in records)
    return f"the {key[0]} {key[1]} is registered by {owners}; uninstall one or name it in VIIWORK_BLOCK"


def _split(record: LoadRecord, refused: dict[tuple[str, str], str]) -> list[LoadRecord]:
    """The record without its refused names, and one failed record for each of these."""
    if record.state != "loaded":
        return [record]
    good = tuple(key for key in record.provides if key not in refused)
    bad = [key for key in dict.fromkeys(record.provides) if key in refused]
    kept = [replace(record, provides=good)] if good or not bad else []
    return kept + [replace(record, state="failed", reason=refused[key], provides=(key,)) for key in bad]


def _would_offer(record: LoadRecord, kind: Kind, name: str) -> bool:
    """Whether a plugin that is not loaded would offer the name: it said so, or it is called so by convention."""
    conventional = record.distribution == _package(kind, name) or record.entry_point in {name, f"{kind}_{name}"}
    return conventional or (kind, name) in record.provides


def _fate(record: LoadRecord) -> str:
    plugin = f"the plugin {record.entry_point} of {record.distribution} {record.version}"
    return f"{plugin} is {record.state}: {record.reason}"


def _fix(record: LoadRecord) -> str:
    if record.state == "failed":
        return f"repair or update it: pip install --upgrade {record.distribution}"
    return f"change {'VIIWORK_BLOCK' if record.state == 'blocked' else 'VIIWORK_PLUGINS'} to allow it"
