"""A mesh of two nodes with one model each, whose caches go from the first to the second through a relay."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hosts import Host, Hosts
from nodes import MODEL, Node, prose, started, until, user
from relay import Relay

from viiwork_core.clock import SystemClock
from viiwork_core.security.secret import MeshSecret, SessionKeys
from viiwork_core.security.signing import Signer

FIRST, SECOND = "alpha", "beta"
SLOTS = 2


def new_secret() -> str:
    return base64.b64encode(secrets.token_bytes(32)).decode()


@dataclass(frozen=True)
class Mesh:
    """Two nodes that know each other."""

    hosts: Hosts
    first: Node
    second: Node
    relay: Relay
    """On the way of caches from the first to the second."""

    secret: str
    gossip: str
    """The first node's, to join at."""

    def session_key(self, session: str) -> str:
        return SessionKeys(self.keys, mesh="default").session_key(session)

    def signer(self) -> Signer:
        """Signs as the first node."""
        return Signer(self.keys.signature, node=FIRST, clock=SystemClock())

    @property
    def keys(self) -> MeshSecret:
        return MeshSecret.from_bytes(base64.b64decode(self.secret))

    def settled(self) -> None:
        """Wait until no slot is taken."""
        for node in (self.first, self.second):
            until(node.idle, f"{node.name} is idle")


def configuration(name: str, host: Host, folder: Path, *, seeds: list[str], port: int) -> dict[str, Any]:
    """What every node here has."""
    return {
        "node": {"name": name, "state_dir": str(folder / "state")},
        "api": {"port": 0},
        "mesh": {
            "network": "seeds",
            "advertise": host.address,
            "bind_port": port,
            "seeds": seeds,
            "capacity_poll": "200ms",
            "rejoin_interval": "1s",
        },
        # The tiny model reads any prompt in no time, so that the default policy would leave a cache for a round trip.
        "routing": {"queue_timeout": "3s", "policy": "least_busy"},
    }


Model = Callable[..., dict[str, Any]]
"""The model of both nodes: its entry, by its file and what its kv_share has besides."""


def tiny(gguf: Path, **kv_share: object) -> dict[str, Any]:
    """For llama-server."""
    return {**_entry("llamacpp", gguf, kv_share), "llamacpp": {"threads": 1}}


def tiny_mlx(folder: Path, **kv_share: object) -> dict[str, Any]:
    """For mlx_lm."""
    return _entry("mlx", folder, kv_share)


def _entry(engine: str, path: Path, kv_share: dict[str, object]) -> dict[str, Any]:
    return {
        "name": MODEL,
        "engine": engine,
        "path": str(path),
        "context": 16384,
        "parallel": SLOTS,
        "kv_share": {"group": "pair", "min_tokens": 100, **kv_share},
    }


@contextmanager
def two_nodes(
    hosts: Hosts,
    path: Path,
    folder: Path,
    *,
    model: Model = tiny,
    direct: str | None = None,
    ready: bool = True,
    **environ: str,
) -> Iterator[Mesh]:
    """Start both and wait until sessions can move either way; `ready` is False for a model whose sessions cannot.

    `direct`: the second host's address that caches are sent to; None: the way there is through the relay.
    """
    secret, port = new_secret(), hosts.first.free_port()
    gossip = f"{hosts.first.address}:{port}"
    one = configuration(FIRST, hosts.first, folder / FIRST, seeds=[], port=port)
    one["models"] = [model(path)]
    two = configuration(SECOND, hosts.second, folder / SECOND, seeds=[gossip], port=hosts.second.free_port())
    two["models"] = [model(path, address=direct or hosts.detour)]
    if hosts.second.namespace is None:
        two["api"]["host"] = hosts.second.address  # the detour's address is the relay's alone
    with ExitStack() as stack:
        first = stack.enter_context(started(hosts.first, FIRST, folder / FIRST, one, secret, **environ))
        second = stack.enter_context(started(hosts.second, SECOND, folder / SECOND, two, secret, **environ))
        relay = Relay(hosts.first, (hosts.detour, second.port), (hosts.second.address, second.port))
        stack.enter_context(relay.running())
        mesh = Mesh(hosts, first, second, relay, secret, gossip)
        if ready:
            _ready(mesh)
        yield mesh
        for node in (first, second):
            node.process.terminate()  # together, for the sake of time


def _ready(mesh: Mesh) -> None:
    """Each has sent the other a cache: both know the other's fingerprint."""
    for number, (node, other) in enumerate(((mesh.first, mesh.second), (mesh.second, mesh.first))):
        session = f"ready-{node.name}"
        until(node.healthy, f"{node.name} is healthy\n{node.log()}", within=90)

        def moved(node: Node = node, other: Node = other, session: str = session, seed: int = number) -> bool:
            node.chat([user(prose(200, seed=seed))], host=node.name, session=session)
            return mesh.session_key(session) in other.replicas()

        until(moved, f"{node.name} sends a cache\n{node.log()}\n{other.log()}")
