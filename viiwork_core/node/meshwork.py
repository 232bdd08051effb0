"""This node's side of the mesh: gossip, discovery, polls, links. Absent when mesh.network is none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from viiwork_core.clock import Clock
from viiwork_core.config.schema import Config
from viiwork_core.contracts.discovery import Card, Discovery
from viiwork_core.engines.control import ControlLoop
from viiwork_core.mesh.capacity import CapacityPolls, PeerView
from viiwork_core.mesh.joining import Joining
from viiwork_core.mesh.links import Links
from viiwork_core.mesh.member import LocalMember
from viiwork_core.mesh.membership import KinshipMembership
from viiwork_core.node.addresses import Places
from viiwork_core.registry.guard import Guard
from viiwork_core.security.secret import MeshSecret
from viiwork_core.security.signing import Signer

OPEN_S = 360.0
"""Deadline for opening a discovery source: Tailscale may wait 5 min for its own address."""


@dataclass(frozen=True)
class Mesh:
    """The open mesh side."""

    membership: KinshipMembership
    links: Links
    polls: CapacityPolls


def local_member(config: Config, places: Places, node_id: str, host: str) -> LocalMember:
    """This node as the others are to know it, at `host`."""
    direct = next((m.kv_share.address for m in config.models if m.kv_share and m.kv_share.address), None)
    port = places.port
    return LocalMember(
        node=config.node.name,
        node_id=node_id,
        host=host,
        gossip_port=config.mesh.bind_port,
        api_port=port,
        kv_address=(f"[{direct}]:{port}" if ":" in direct else f"{direct}:{port}") if direct else None,
    )


@asynccontextmanager
async def open_mesh(
    config: Config,
    local: LocalMember,
    secret: MeshSecret | None,
    sources: Sequence[Discovery],
    *,
    control: ControlLoop,
    clock: Clock,
    publish: Callable[[PeerView], None],
    forget: Callable[[str], None],
) -> AsyncIterator[Mesh]:
    """Start gossip, and look for other nodes in the background. Leaves the mesh at the end, if nobody has before."""
    signer = Signer(secret.signature, node=local.node, clock=clock) if secret else None
    membership = KinshipMembership(
        local, mesh=config.mesh.name, secret=secret, rejoin_interval=min(15.0, config.mesh.rejoin_interval)
    )
    await membership.start()
    try:
        source = local.host if secret is None else None
        async with Links(node=local.node, signer=signer, source=source) as links:
            polls = CapacityPolls(
                membership, links, clock=clock, publish=publish, forget=forget, interval_s=config.mesh.capacity_poll
            )
            card = Card(node=local.node, node_id=local.node_id, address=membership.address, mesh=config.mesh.name)
            interval = config.mesh.rejoin_interval
            control.start(_discover(sources, membership, card, clock=clock, interval_s=interval))
            yield Mesh(membership, links, polls)
    finally:
        await membership.leave()


async def _discover(
    sources: Sequence[Discovery], membership: KinshipMembership, card: Card, *, clock: Clock, interval_s: float
) -> None:
    """On the control loop, until cancelled."""
    async with AsyncExitStack() as stack:
        for source in sources:
            guard = Guard(f"discovery {source.name}", clock=clock)
            await guard.call("open", OPEN_S, lambda source=source: stack.enter_async_context(source))  # type: ignore[misc]  # mypy cannot type a lambda's default
            await guard.call("announce", OPEN_S, lambda source=source: source.announce(card))  # type: ignore[misc]  # as above
        await Joining(membership, sources, clock=clock, interval_s=interval_s).run()
