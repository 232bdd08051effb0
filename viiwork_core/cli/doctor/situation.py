"""The situation: what is known before anything is looked at, and how findings are written."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from viiwork_core.cli.doctor.api import Api
from viiwork_core.config.schema import Config
from viiwork_core.contracts.doctor import Finding, Level
from viiwork_core.registry.options import Resolved
from viiwork_core.registry.registry import Registry


@dataclass(frozen=True)
class Machine:
    """This machine, by its configuration."""

    config: Config
    registry: Registry
    resolved: Resolved


@dataclass(frozen=True)
class Running:
    """A node that answers."""

    api: Api
    status: Mapping[str, Any]
    """Its /v1/status."""

    cluster: Mapping[str, Any]
    """Its /v1/cluster."""

    @property
    def node(self) -> str:
        """Its name."""
        return str(self.status["node"])

    @property
    def others(self) -> list[Mapping[str, Any]]:
        """The other members of its mesh, as in /v1/cluster."""
        return [one for one in self.cluster["members"] if one["node_id"] != self.status["node_id"]]

    @property
    def heard(self) -> list[Mapping[str, Any]]:
        """Those whose API answers."""
        return [one for one in self.others if one.get("addr") and "age_ms" in one and not one.get("stale")]


@dataclass(frozen=True)
class Situation:
    """What checks look at."""

    environ: Mapping[str, str]
    timeout: float
    """Seconds that one answer may take."""

    machine: Machine | None
    """None: it is another machine's node that is meant."""

    running: Running | None
    """None: no node runs."""

    topics: frozenset[str] = frozenset()
    """What else is looked at: one topic need not repeat what another says."""


Check = Callable[[Situation], Awaitable[Sequence[Finding]]]


def ok(what: str) -> Finding:
    """All is well."""
    return Finding(Level.OK, what)


def warning(what: str, remedy: str) -> Finding:
    """It works, and may not always."""
    return Finding(Level.WARNING, what, remedy)


def problem(what: str, remedy: str) -> Finding:
    """It does not work."""
    return Finding(Level.PROBLEM, what, remedy)


def split(text: str, otherwise: str) -> tuple[str, str]:
    """A sentence that ends with its remedy after a semicolon, as the two; `otherwise` where it has none."""
    what, semicolon, remedy = text.rpartition("; ")
    return (what, remedy) if semicolon and remedy.strip() else (text, otherwise)
