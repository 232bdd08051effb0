"""This node's side of the mesh: gossip, discovery, polls, links. Absent when mesh.network is none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import structlog

from viiwork_core.clock import Clock
from viiwork_core.config.schema import Config
from viiwork_core.contracts.discovery import Discovery
from viiwork_core.engines.control import ControlLoop
from viiwork_core.mesh.awaited import AwaitedMembership
from viiwork_core.mesh.capacity import CapacityPolls, PeerView
from viiwork_core.mesh.links import Links
from viiwork_core.mesh.member import LocalMember, Member, join_address
from viiwork_core.mesh.membership import Membership
from viiwork_core.node.addresses import Places
from viiwork_core.node.arrival import Arrival
from viiwork_core.observe.events import EventLog
from viiwork_core.security.ring import SecretRing
from viiwork_core.security.signing import Signer

_log = structlog.get_logger("viiwork.mesh")


@dataclass(frozen=True)
class Mesh:
    """The open mesh side."""

    membership: Membership
    links: Links
    polls: CapacityPolls
    arrival: Arrival


def local_member(config: Config, places: Places, node_id: str, host: str) -> LocalMember:
    """What this node tells the others about itself, at `host`."""
    direct = next((m.kv_share.address for m in config.models if m.kv_share and m.kv_share.address), None)
    return LocalMember(
        node=config.node.name,
        node_id=node_id,
        host=host,
        gossip_port=config.mesh.bind_port,
        api_port=places.port,
        kv_address=join_address(direct, places.port) if direct else None,
    )


@asynccontextmanager
async def open_mesh(
    config: Config,
    places: Places,
    node_id: str,
    secret: SecretRing | None,
    sources: Sequence[Discovery],
    *,
    control: ControlLoop,
    clock: Clock,
    publish: Callable[[PeerView], None],
    forget: Callable[[str], None],
    silent: Callable[[Member, float], None],
) -> AsyncIterator[Mesh]:
    """Start gossip, and look for other nodes in the background. Leaves the mesh at the end, if nobody has before.

    Where `places` know no address yet, both begin as soon as a discovery tells one; until then nobody is there.
    """
    node = config.node.name
    signer = Signer(lambda: secret.signature, node=node, clock=clock) if secret else None
    membership = AwaitedMembership()
    describe = partial(local_member, config, places, node_id)
    try:
        async with AsyncExitStack() as stack:
            links = await stack.enter_async_context(Links(node=node, signer=signer))
            polls = CapacityPolls(
                membership,
                links,
                clock=clock,
                publish=publish,
                forget=forget,
                silent=silent,
                interval_s=config.mesh.capacity_poll,
            )
            arrival = Arrival(config, places, secret, describe, membership, links, sources, control, clock)
            await _arrive(arrival, places.mesh_host, stack)
            yield Mesh(membership, links, polls, arrival)
    finally:
        await membership.leave()


async def _arrive(arrival: Arrival, host: str | None, stack: AsyncExitStack) -> None:
    """At once where this node's address is known, else in the background."""
    if host is not None:
        await arrival.now(host)
        return
    coming = asyncio.create_task(arrival.later())
    coming.add_done_callback(_failed)
    stack.push_async_callback(_ended, coming)


async def leave(node: str, events: EventLog, mesh: Mesh | None) -> None:
    """Tell whoever follows this node, and then the other members, that it goes."""
    # First of all: who follows the log would hold up the server's end.
    events.emit("system", f"{node} stops")
    events.close()
    if mesh is not None:
        await mesh.membership.leave()


async def _ended(work: asyncio.Task[None]) -> None:
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


def _failed(work: asyncio.Task[None]) -> None:
    if not work.cancelled() and (error := work.exception()) is not None:
        _log.error("coming into the mesh failed", exc_info=error)
