"""Where a node listens: loopback and its address in the mesh, and nothing wider without being told."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from viiwork_core.config.schema import Config
from viiwork_core.errors import ConfigError, ViiworkError
from viiwork_core.mesh.member import join_address
from viiwork_core.node.own_address import own_address
from viiwork_core.registry.options import Resolved

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Places:
    """Bound sockets of the API, and the address that other members know this node by."""

    mesh_host: str | None
    """None: no mesh, or not known yet."""

    sockets: tuple[socket.socket, ...]
    """Bound, for a server to listen on."""

    host: str
    """The first address of the API: loopback, unless api.host says otherwise."""

    port: int
    """The API's port, the same on every address."""

    awaited: bool = False
    """The mesh's address is not known yet; a discovery tells it while the node runs."""

    later: asyncio.Queue[socket.socket] | None = None
    """Bound while the node runs, for the server to listen on too. None: the API listens where it listens now."""

    hosts: tuple[str, ...] = ()
    """All addresses of the API that are known at the start; empty: another program listens."""

    @property
    def in_mesh(self) -> bool:
        return self.mesh_host is not None or self.awaited

    def add(self, host: str) -> None:
        """The address that was awaited. Raises ConfigError when the API's port is taken there."""
        if self.later is not None:
            self.later.put_nowait(_bound(host, self.port))

    @property
    def url(self) -> str:
        """The API as a person on this machine types it."""
        return f"http://{join_address(self.host, self.port)}"

    def close(self) -> None:
        """Close what no server has taken over."""
        for one in self.sockets:
            one.close()
        while self.later is not None and not self.later.empty():
            self.later.get_nowait().close()


def bind(config: Config, resolved: Resolved) -> Places:
    """Bind the API's addresses. Raises ConfigError, naming the one that is taken."""
    mesh_host, awaited = _mesh_host(config, resolved)
    hosts = list(dict.fromkeys([config.api.host] if config.api.host else _hosts(config, mesh_host, awaited)))
    sockets: list[socket.socket] = []
    port = config.api.port
    try:
        for host in hosts:
            sockets.append(_bound(host, port))
            port = sockets[0].getsockname()[1]
    except ConfigError:
        for one in sockets:
            one.close()
        raise
    later = asyncio.Queue[socket.socket]() if awaited and not config.api.host else None
    return Places(mesh_host, tuple(sockets), hosts[0], port, awaited, later, tuple(hosts))


def served_elsewhere(config: Config, resolved: Resolved) -> Places:
    """Where another program listens for the node: nothing is bound. Raises ConfigError when that cannot be known."""
    if config.api.port == 0:
        remedy = "set it to the port that the server listens on"
        raise ConfigError("api.port: is 0, and cannot be known here", remedy=remedy)
    mesh_host, awaited = _mesh_host(config, resolved)
    return Places(mesh_host, (), config.api.host or LOOPBACK, config.api.port, awaited)


def _hosts(config: Config, mesh_host: str | None, awaited: bool) -> Iterable[str]:
    yield LOOPBACK
    if mesh_host is not None:
        yield mesh_host
    if mesh_host is not None or awaited:
        yield from (m.kv_share.address for m in config.models if m.kv_share and m.kv_share.address)


def mesh_host(config: Config, resolved: Resolved) -> str | None:
    """Where other members reach this node, or would. None: there is no mesh, or it is not known yet.

    Raises ConfigError when nothing can tell.
    """
    return _mesh_host(config, resolved)[0]


def _mesh_host(config: Config, resolved: Resolved) -> tuple[str | None, bool]:
    """The address, and whether it is still awaited."""
    mesh = config.mesh
    if mesh.network == "none":
        return None, False
    if mesh.advertise:
        return mesh.advertise, False
    if mesh.network != "seeds" or not mesh.seeds:
        try:
            found = own_address(config, resolved)
        except ViiworkError:
            return None, True  # asked again, and told about, when the node runs
        if found is not None:
            return found, False
    if not mesh.seeds:
        raise ConfigError(
            "mesh.advertise: is not set, and no seed tells which network is meant",
            remedy="set mesh.advertise to this node's address, or mesh.network to none",
        )
    return _source_address(mesh.seeds[0]), False


def _source_address(seed: str) -> str:
    """The address from which this machine would reach `seed`. Nothing is sent."""
    host, _, port = seed.rpartition(":")
    host = host.strip("[]")
    family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((host, int(port)))
        except OSError as error:
            raise ConfigError(f"mesh.seeds: there is no route to {seed}: {error.strerror}") from error
        address: str = probe.getsockname()[0]
        return address


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    one = socket.socket(family, socket.SOCK_STREAM)
    # A restart must not wait for connections of the run before to time out.
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        one.bind((host, port))
    except OSError as error:
        one.close()
        raise ConfigError(
            f"api.port: cannot listen on {host} port {port}: {error.strerror}",
            remedy="stop what listens there, or choose another api.port (0 takes a free one)",
        ) from error
    return one
