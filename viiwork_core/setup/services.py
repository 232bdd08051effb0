"""All ways to keep a node running: which this machine has, and the one of a name."""

from __future__ import annotations

from typing import Final

from viiwork_core.errors import ConfigError
from viiwork_core.setup.docker import Docker
from viiwork_core.setup.launch_agent import LaunchAgent
from viiwork_core.setup.locations import Locations
from viiwork_core.setup.process import BackgroundProcess
from viiwork_core.setup.service import Service, Subject
from viiwork_core.setup.systemd import SystemUnit, UserUnit

SERVICES: Final[tuple[type[Service], ...]] = (SystemUnit, UserUnit, LaunchAgent, Docker, BackgroundProcess)
"""The best first."""


def available(locations: Locations) -> tuple[type[Service], ...]:
    """Those that this machine can be served by, the one to propose first. There is always one."""
    return tuple(kind for kind in SERVICES if not kind.unavailable(locations))


def service(name: str, subject: Subject) -> Service:
    """The one of a name. Raises ConfigError for a name that there is not."""
    for kind in SERVICES:
        if kind.name == name:
            return kind(subject)
    names = ", ".join(kind.name for kind in SERVICES)
    raise ConfigError(f"service: there is no {name}", remedy=f"choose one of {names}")
