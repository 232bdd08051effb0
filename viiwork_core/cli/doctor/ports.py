"""Ports: whether this machine's are free for a node, or held by its own, and answer at the address that others use."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

from viiwork_core.cli.doctor.api import NotLetIn
from viiwork_core.cli.doctor.situation import Machine, Running, Situation, ok, problem, warning
from viiwork_core.config.schema import Config
from viiwork_core.contracts.doctor import Finding
from viiwork_core.errors import ViiworkError
from viiwork_core.node.addresses import bind
from viiwork_core.setup.meeting import usual_address
from viiwork_core.setup.ports import KINDS, refusal

_HOLDER = "stop what listens there, or choose another port"


async def ports(situation: Situation) -> Sequence[Finding]:
    """Those of the API and the gossip."""
    machine, running = situation.machine, situation.running
    if running is not None:
        bind_port = machine.config.mesh.bind_port if machine is not None else None
        return await _held(running, bind_port)
    if machine is None:
        return []
    return await asyncio.to_thread(lambda: list(_free(machine)))


def _free(machine: Machine) -> Iterator[Finding]:
    config = machine.config
    if foreign := list(_foreign(config)):
        yield from foreign
        return
    try:
        places = bind(config, machine.resolved)
    except ViiworkError as error:
        yield problem(error.message, error.remedy or _HOLDER)
        return
    except OSError as error:
        yield problem(f"the address of this node cannot be asked for: {error}", "make node.state_dir writable")
        return
    hosts = ", ".join(str(one.getsockname()[0]) for one in places.sockets)
    places.close()
    yield from _api(config, hosts, in_mesh=places.in_mesh)
    if places.mesh_host is not None:
        yield _gossip(places.mesh_host, config.mesh.bind_port)
    elif places.awaited:
        what = "this machine has no address in the mesh's network yet: a node would wait for it"
        yield warning(what, "bring the network up, or set mesh.advertise")


def _foreign(config: Config) -> Iterator[Finding]:
    """Configured addresses on which this machine can listen at no port: they are not its own, as a rule."""
    for key, host in _configured(config):
        # At port 0, which is never taken: what is refused is the address.
        if (why := refusal(host, 0, "tcp")) is not None:
            own = usual_address()
            remedy = f"set {key} to an address of this machine{f', such as {own}' if own else ''}"
            yield problem(f"{key}: this machine cannot listen on {host}: {why}", remedy)


def _configured(config: Config) -> Iterator[tuple[str, str]]:
    """Keys that name an address to listen on, each with its address."""
    if config.api.host:
        yield "api.host", config.api.host
    if config.mesh.network == "none":
        return
    if config.mesh.advertise:
        yield "mesh.advertise", config.mesh.advertise
    for model in config.models:
        if model.kv_share and model.kv_share.address and not config.api.host:
            yield f"models[{model.name}].kv_share.address", model.kv_share.address


def _api(config: Config, hosts: str, *, in_mesh: bool) -> Iterator[Finding]:
    if config.api.port == 0:
        if in_mesh:
            what = "api.port is 0: no firewall can be told which port other nodes need"
            yield warning(what, "set api.port, to 8086 for example")
        return
    yield ok(f"tcp {config.api.port} is free for the API on {hosts}")


def _gossip(host: str, port: int) -> Finding:
    for kind in KINDS:
        if (why := refusal(host, port, kind)) is not None:
            remedy = "stop what listens there, or change mesh.bind_port and mesh.advertise"
            return problem(f"mesh.bind_port: cannot listen on {host} {kind} {port}: {why}", remedy)
    return ok(f"tcp and udp {port} are free for the gossip on {host}")


async def _held(running: Running, bind_port: int | None) -> list[Finding]:
    host, port = running.status.get("addr"), int(running.status["api_port"])
    if host is None:
        return [ok(f"the API answers at {running.api.url}")]
    found = [await _answers(running, str(host), port)]
    if bind_port is not None:
        found.append(await _listens(str(host), bind_port))
    return found


async def _answers(running: Running, host: str, port: int) -> Finding:
    """Asked at the address that other members use."""
    at = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        told: Any = await running.api.get("/v1/status", at=at)
    except NotLetIn as error:
        return error.finding
    except ViiworkError as error:
        what = f"the API does not answer at {at}, where other nodes look for it: {error.message}"
        return problem(what, "let api.host be an address that the others reach, or leave it out")
    if not isinstance(told, dict) or told.get("node_id") != running.status["node_id"]:
        return problem(f"another node answers at {at}", "give each machine an address of its own")
    return ok(f"the API answers at {at}")


async def _listens(host: str, port: int) -> Finding:
    try:
        _, writer = await asyncio.wait_for(asyncio.open_connection(host, port), 5)
    except (OSError, TimeoutError) as error:
        what = f"the gossip of this node does not answer at {host} tcp {port}: {error or 'no answer within 5 s'}"
        return problem(what, "see its log: it may not be in the mesh yet")
    writer.close()
    return ok(f"the gossip answers at {host} tcp {port}")
