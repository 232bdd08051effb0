"""Nodes of one mesh, each at an address of its own within 127.0.0.0/8."""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from http_node import CHAT, Answer, Node, ask, started, until


def free_port(host: str) -> int:
    """One for gossip."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def mesh_at(host: str, port: int, seeds: Iterable[str], **more: Any) -> dict[str, Any]:
    """The section `mesh` of a configuration."""
    return {
        "network": "seeds",
        "advertise": host,
        "bind_port": port,
        "seeds": list(seeds),
        "capacity_poll": "200ms",
        "rejoin_interval": "1s",
        **more,
    }


class Mesh(ABC):
    """Nodes that run, and how to start one."""

    def __init__(self, folder: Path, hosts: Mapping[str, str]) -> None:
        """`hosts`: addresses by name."""
        self.folder, self.hosts = folder, hosts
        self.ports = {name: free_port(host) for name, host in hosts.items()}
        self.running: dict[str, tuple[Node, ExitStack]] = {}

    def __getitem__(self, name: str) -> Node:
        return self.running[name][0]

    @abstractmethod
    def config(self, name: str) -> dict[str, Any]:
        """A node's configuration."""

    def section(self, name: str, **more: Any) -> dict[str, Any]:
        """The section `mesh` of it; all others are its seeds."""
        seeds = (f"{host}:{self.ports[other]}" for other, host in self.hosts.items() if other != name)
        return mesh_at(self.hosts[name], self.ports[name], seeds, **more)

    def start(self, name: str, *, healthy: bool = True, **environ: str) -> Node:
        stack = ExitStack()
        starting = started(name, self.folder / name, self.config(name), healthy=healthy, environ=environ or None)
        self.running[name] = stack.enter_context(starting), stack
        return self[name]

    def stop(self, *names: str) -> None:
        """End these, or all."""
        for name in names or tuple(self.running):
            self.running.pop(name)[1].close()


@contextmanager
def meeting(
    folder: Path,
    hosts: tuple[str, str],
    front: Mapping[str, Any],
    back: Mapping[str, Any],
    *,
    environ: Mapping[str, str] | None = None,
) -> Iterator[tuple[Node, Node]]:
    """Two nodes, `front` and `back`, once they know each other and `front` all models. Their configurations are given
    without the section `mesh`."""
    first, second = ((host, free_port(host)) for host in hosts)
    routing = {"routing": {"queue_timeout": "3s"}}
    one = {"mesh": mesh_at(*first, [":".join(map(str, second))]), **routing, **front}
    other = {"mesh": mesh_at(*second, [":".join(map(str, first))]), **routing, **back}
    models = {model["name"] for model in (*one["models"], *other["models"])}
    with (
        started("front", folder / "front", one, environ=environ) as left,
        started("back", folder / "back", other, environ=environ) as right,
    ):
        until(lambda: {found["id"] for found in left.get("/v1/models")["data"]} >= models, "they meet")
        until(lambda: right.get("/v1/status")["members"], "both of them")
        yield left, right


def asked(node: Node, body: bytes, rid: str, *headers: tuple[str, str], path: str = CHAT) -> Answer:
    """A request with this id, and its whole answer."""
    return asyncio.run(ask(node, body, headers=[("X-Request-Id", rid), *headers], path=path))
