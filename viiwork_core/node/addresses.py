"""Where a node listens: loopback and its address in the mesh, and nothing wider without being told."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass

from viiwork_core.config.schema import Config
from viiwork_core.errors import ConfigError

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Places:
    """Bound sockets of the API, and the address that other members know this node by."""

    mesh_host: str | None
    """None: no mesh."""

    sockets: tuple[socket.socket, ...]
    """Bound, for a server to listen on."""

    host: str
    """The first address of the API: loopback, unless api.host says otherwise."""

    port: int
    """The API's port, the same on every address."""

    @property
    def url(self) -> str:
        """The API as a person on this machine types it."""
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def close(self) -> None:
        """Close what no server has taken over."""
        for one in self.sockets:
            one.close()


def bind(config: Config) -> Places:
    """Bind the API's addresses. Raises ConfigError, naming the one that is taken."""
    mesh_host = _mesh_host(config)
    hosts = list(dict.fromkeys([config.api.host] if config.api.host else _hosts(config, mesh_host)))
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
    return Places(mesh_host, tuple(sockets), hosts[0], port)


def served_elsewhere(config: Config) -> Places:
    """Where another program listens for the node: nothing is bound. Raises ConfigError when that cannot be known."""
    if config.api.port == 0:
        remedy = "set it to the port that the server listens on"
        raise ConfigError("api.port: is 0, and cannot be known here", remedy=remedy)
    return Places(_mesh_host(config), (), config.api.host or LOOPBACK, config.api.port)


def _hosts(config: Config, mesh_host: str | None) -> Iterable[str]:
    yield LOOPBACK
    if mesh_host is not None:
        yield mesh_host
        yield from (m.kv_share.address for m in config.models if m.kv_share and m.kv_share.address)


def _mesh_host(config: Config) -> str | None:
    mesh = config.mesh
    if mesh.network == "none":
        return None
    if mesh.advertise:
        return mesh.advertise
    if not mesh.seeds:
        raise ConfigError(
            "mesh.advertise: is not set, and no seed tells which network is meant",
            remedy="set mesh.advertise to this node's address, or mesh.network to none",
        )
    return _source_address(mesh.seeds[0])


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
