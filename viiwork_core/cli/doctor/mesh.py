"""The mesh: its mode and secret, who is in it and sees this node, and what the discoveries see."""

from __future__ import annotations

import asyncio
import socket
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from viiwork_core.cli.doctor.api import NotLetIn
from viiwork_core.cli.doctor.situation import Machine, Running, Situation, ok, problem, warning
from viiwork_core.clock import SystemClock
from viiwork_core.contracts.context import Context
from viiwork_core.contracts.discovery import Discovery, Sighting
from viiwork_core.contracts.doctor import Finding
from viiwork_core.engines.commands import Commands
from viiwork_core.engines.digest import Digests
from viiwork_core.errors import ConfigError, ViiworkError
from viiwork_core.mesh.greeter import Greeter
from viiwork_core.mesh.greeting import ADVICE, Caller, Verdict
from viiwork_core.mesh.links import Links
from viiwork_core.node.admission import secret_of
from viiwork_core.registry.guard import Guard
from viiwork_core.security.ring import SecretRing
from viiwork_core.security.signing import Signer

SIGHTINGS_MOST: Final = 64
"""Of one source that are looked into."""

LOOK_S: Final = 15.0

_SILENT = "let TCP and UDP pass to its ports, and see that a node runs there"


async def mesh(situation: Situation) -> Sequence[Finding]:
    """All that can be asked about it."""
    machine, running = situation.machine, situation.running
    found, secret, usable = list[Finding](), None, False
    if machine is not None and machine.config.mesh.network == "none":
        return [ok("this machine is on its own (mesh.network is none)")]
    if machine is not None:
        finding, secret, usable = _mode(machine, situation)
        found.append(finding)
    if running is not None:
        found += _membership(running)
        found += await asyncio.gather(*(_seen_by(running, member) for member in running.heard))
    if machine is not None and usable:
        found += await _discoveries(machine, running, secret)
    return found


def _mode(machine: Machine, situation: Situation) -> tuple[Finding, SecretRing | None, bool]:
    """What it is, the secret, and whether others can be greeted as this node would. The secret itself is never told."""
    config, running = machine.config.mesh, situation.running
    try:
        secret = secret_of(machine.config, situation.environ)
    except ConfigError as error:
        secured = running is not None and running.status["mesh"] == "secured"
        if secured and not situation.environ.get(config.secret_env, "").strip():
            what = f"the node has its secret, and this shell has not: {config.secret_env} is not set, less is looked at"
            return warning(what, f"set {config.secret_env} here as for the node"), None, False
        return problem(error.message, error.remedy or f"correct {config.secret_env}"), None, False
    if secret is None:
        return ok("the mesh is open (mesh.open): anybody who reaches the port can join"), None, True
    ids = " and ".join(one.id for one in secret.all)
    what = f"the mesh is secured by {config.secret_env} (id {ids}: the same on all its nodes)"
    return ok(what), secret, True


def _membership(running: Running) -> Iterator[Finding]:
    for member in running.others:
        name, at = member["node"], member.get("addr") or "an unknown address"
        if member["state"] != "alive":
            yield warning(f"{name} ({at}) is {member['state']}", "see whether it still runs, and its machine's network")
        elif member.get("stale") or "age_ms" not in member:
            what = f"{name} gossips, and its API at {at} does not answer: nothing is sent there"
            yield problem(what, "let TCP pass to that port, and see that node's log")
        else:
            rtt = f", {member['rtt_ms']:g} ms away" if "rtt_ms" in member else ""
            yield ok(f"{name} ({at}) is a member, its report is {member['age_ms']} ms old{rtt}")
            if member.get("ver") != running.status["ver"]:
                what = f"{name} runs viiwork {member.get('ver')}, and {running.node} runs {running.status['ver']}"
                yield warning(what, "run the same version on all nodes")


async def _seen_by(running: Running, member: Mapping[str, Any]) -> Finding:
    """What the other side says: that tells whether this node's ports are reached from there."""
    name = member["node"]
    try:
        told = await running.api.get("/v1/cluster", at=str(member["addr"]))
        own = next((one for one in told["members"] if one["node_id"] == running.status["node_id"]), None)
    except NotLetIn as error:
        return error.finding
    except (ViiworkError, KeyError, TypeError) as error:
        return problem(f"{name} cannot be asked what it sees: {error}", "let TCP pass to its API")
    if own is None:
        return problem(f"{name} does not know this node", "let TCP and UDP pass from there to this node's gossip port")
    if own.get("stale") or "age_ms" not in own:
        what = f"{name} does not reach this node's API at {own.get('addr')}"
        return problem(what, f"let TCP pass from {name} to that port")
    return ok(f"{name} reaches this node's API")


async def _discoveries(machine: Machine, running: Running | None, secret: SecretRing | None) -> list[Finding]:
    config, found = machine.config, list[Finding]()
    signer = Signer(secret.current.signature, node=config.node.name, clock=SystemClock()) if secret else None
    known = _known(machine, running)
    caller = Caller(config.node.name, "secured" if secret else "open", config.mesh.name)
    with tempfile.TemporaryDirectory(prefix="viiwork-") as folder:
        async with Links(node=config.node.name, signer=signer) as links:
            own = str(running.status["node_id"]) if running else ""
            greeter = Greeter(links, caller, node_id=own, api_port=config.api.port or 8086)
            for cls, options in machine.resolved.discoveries:
                source = cls(options, _context(config.node.name, Path(folder) / cls.name))
                found += await _source(source, known, greeter, alone=running is None)
    return found


def _context(node: str, folder: Path) -> Context:
    folder.mkdir(mode=0o700)
    return Context(node, folder, Commands("doctor").run, Digests(folder).of)


def _known(machine: Machine, running: Running | None) -> set[str]:
    """IP addresses of this machine and of members."""
    known = {machine.config.mesh.advertise, *_own_addresses()} - {""}
    members = running.cluster["members"] if running is not None else ()
    return known | {str(one["addr"]).rpartition(":")[0].strip("[]") for one in members if one.get("addr")}


def _own_addresses() -> set[str]:
    try:
        return {str(one[4][0]) for one in socket.getaddrinfo(socket.gethostname(), None)} - {"127.0.0.1", "::1"}
    except OSError:
        return set()


async def _source(source: Discovery, known: set[str], greeter: Greeter, *, alone: bool) -> list[Finding]:
    try:
        sightings = await Guard(f"discovery {source.name}", clock=SystemClock()).call(
            "looking", LOOK_S, lambda: _look(source)
        )
    except ViiworkError as error:
        return [
            problem(f"{source.name} cannot look: {error.message}", error.remedy or "see what it needs in its README")
        ]
    fresh = [one for one in sightings if known.isdisjoint(map(_host, (one.address, *one.also)))]
    certain = f"{source.name} answers: {len(sightings)} seen"
    if sightings and len(fresh) < len(sightings):
        certain += f", {len(sightings) - len(fresh)} of them known"
    told = await asyncio.gather(*(_greeted(one, greeter, alone=alone) for one in fresh))
    return [ok(certain), *(one for one in told if one is not None)]


async def _look(source: Discovery) -> list[Sighting]:
    found = list[Sighting]()
    async with source:
        async for sighting in source.sightings():
            found.append(sighting)
            if len(found) == SIGHTINGS_MOST:
                break
    return found


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


async def _greeted(sighting: Sighting, greeter: Greeter, *, alone: bool) -> Finding | None:
    """What keeps this node and the one that was seen apart. None: there is no node, as may well be."""
    verdicts = await asyncio.gather(*(_explained(one, greeter) for one in (sighting.address, *sighting.also)))
    verdict = next((one for one in verdicts if one is not None), None)
    who = f"{sighting.hint or 'a node'} at {sighting.address}"
    if verdict is None:
        what = f"{who} was seen by {sighting.source}, and no node's API answers there"
        return warning(what, _SILENT) if sighting.certain else None
    if verdict:
        return problem(f"{who} does not let this node in: {verdict}", ADVICE[verdict])
    if alone:
        return ok(f"{who} would let this node in")
    return problem(f"{who} is not in the mesh, though both fit", ADVICE[""])


async def _explained(address: str, greeter: Greeter) -> Verdict | None:
    return await greeter.explain(address) if _is_address(address) else None


def _is_address(address: str) -> bool:
    host, colon, port = address.rpartition(":")
    return bool(host and colon and port.isdigit())
