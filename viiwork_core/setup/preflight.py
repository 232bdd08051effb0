"""The preflight: what stands in the way of a node on this machine, looked at before anything is asked."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from viiwork_core.contracts.capabilities import Recognizes
from viiwork_core.contracts.doctor import Finding, Level
from viiwork_core.contracts.engine import Engine
from viiwork_core.engines.commands import Commands
from viiwork_core.errors import ConfigError, PluginError, ViiworkError
from viiwork_core.registry.guard import attempt
from viiwork_core.security.signing import SKEW_S
from viiwork_core.setup.answers import ApiAnswer, MeshAnswer
from viiwork_core.setup.locations import Locations
from viiwork_core.setup.neighbours import Addresses, Neighbour
from viiwork_core.setup.ports import KINDS, refusal
from viiwork_core.setup.programs import runs
from viiwork_core.setup.timekeeping import REMEDY, judged, kept

LOOPBACK: Final = "127.0.0.1"
ANYWHERE: Final = "0.0.0.0"  # noqa: S104  # tried for a moment, where the address is not known yet
NEAR_S: Final = 5.0
"""Seconds by which a neighbour's clock may seem off: its answer was under way, and its date has no fractions."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A port that the node would listen on."""

    kind: str
    """tcp or udp."""

    host: str
    port: int
    use: str
    key: str
    """Which answer says so."""


def wanted(api: ApiAnswer, mesh: MeshAnswer, *, in_mesh: bool) -> list[Wanted]:
    """Those of the API and the gossip, at the addresses that are known so far."""
    hosts = _api_hosts(api, mesh, in_mesh=in_mesh)
    found = [Wanted("tcp", host, api.port, "the API", "api.port") for host in hosts]
    if in_mesh:
        own = mesh.advertise or ANYWHERE
        found += [Wanted(kind, own, mesh.bind_port, "the gossip", "mesh.bind_port") for kind in KINDS]
    return [one for one in found if one.port]


def _api_hosts(api: ApiAnswer, mesh: MeshAnswer, *, in_mesh: bool) -> list[str]:
    if api.host is not None:
        return [api.host]
    if not in_mesh:
        return [LOOPBACK]
    return [LOOPBACK, mesh.advertise] if mesh.advertise else [ANYWHERE]


async def preflight(
    locations: Locations,
    engines: Mapping[str, type[Engine]],
    ports: Sequence[Wanted],
    *,
    in_mesh: bool,
    replace: bool,
    addresses: Addresses | None = None,
) -> list[Finding]:
    """Look at everything. A problem means that what is set up now would not run. `addresses`: what the discoveries
    say of this machine."""
    return [
        _existing(locations, replace=replace),
        *map(port_finding, ports),
        *await _programs(engines),
        *(_discovery(name, told) for name, told in (addresses or {}).items()),
        judged(time.time(), kept(), in_mesh=in_mesh),
    ]


def _existing(locations: Locations, *, replace: bool) -> Finding:
    if not locations.config.exists():
        return Finding(Level.OK, f"there is no {locations.config} yet")
    if replace:
        return Finding(Level.OK, f"{locations.config} is there, and is replaced; what it says now is kept beside it")
    what = f"{locations.config} is there already: this machine is set up"
    return Finding(Level.PROBLEM, what, "edit it; or begin anew with --replace, or after `viiwork uninstall`")


def taken(ports: Sequence[Wanted]) -> list[Wanted]:
    """Those that cannot be had."""
    return [one for one in ports if refusal(one.host, one.port, one.kind) is not None]


def port_finding(one: Wanted) -> Finding:
    """Whether it can be had."""
    where = f"{one.kind} {one.port}" + ("" if one.host == ANYWHERE else f" on {one.host}")
    why = refusal(one.host, one.port, one.kind)
    if why is None:
        return Finding(Level.OK, f"{where} is free for {one.use}")
    remedy = f"stop what listens there, or choose another {one.key}"
    return Finding(Level.PROBLEM, f"{where} cannot be had for {one.use}: {why}", remedy)


async def _programs(engines: Mapping[str, type[Engine]]) -> list[Finding]:
    """Those that start where no model names another one. A missing one is a warning: it may not be needed."""
    found = list[Finding]()
    for name, engine in engines.items():
        assert issubclass(engine, Recognizes)
        try:
            program = attempt(f"looking for the program of {name}", engine.program)
        except (ConfigError, PluginError) as error:
            what = f"{name}: {error.message.rpartition(': ')[2]}"
            found.append(Finding(Level.WARNING, what, error.remedy or "see the README of the engine's plugin"))
            continue
        if program is not None:
            looked = await runs(program, Commands("init").run)
            level = Level.WARNING if looked.level is Level.PROBLEM else looked.level
            found.append(Finding(level, f"{name}: {looked.what}", looked.remedy))
    if not engines:
        what, remedy = "no installed engine recognises models by their files", "pip install 'viiwork[all]'"
        found.append(Finding(Level.WARNING, what, remedy))
    return found


def _discovery(name: str, told: str | ViiworkError | None) -> Finding:
    """A warning only: which network the mesh is in is decided later, and there may be another one."""
    if isinstance(told, ViiworkError):
        remedy = f"to find nodes by {name}: {told.remedy or 'see the README of its plugin'}"
        return Finding(Level.WARNING, f"{name} finds no nodes here: {told.message}", remedy)
    return Finding(Level.OK, f"{name} can find nodes" + (f"; this machine is {told} there" if told else ""))


def clocks(neighbours: Sequence[Neighbour]) -> list[Finding]:
    """Whether this machine's clock agrees with those of its neighbours."""
    told = [one for one in neighbours if one.skew_s is not None]
    off = [one for one in told if abs(one.skew_s or 0) > NEAR_S]
    for one in off:
        skew = one.skew_s or 0
        what = f"the clock of {one.node} is {abs(skew):.0f} s {'ahead' if skew > 0 else 'behind'}"
        if abs(skew) > SKEW_S:
            return [Finding(Level.PROBLEM, f"{what}: in a secured mesh it refuses what this machine signs", REMEDY)]
        return [Finding(Level.WARNING, what, REMEDY)]
    nodes = "1 node" if len(told) == 1 else f"{len(told)} nodes"
    return [Finding(Level.OK, f"the clock agrees with {nodes} nearby")] if told else []
