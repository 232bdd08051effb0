"""This node's side of kv_share: the store of others' caches, the sender of its own, and what happens around a turn."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from viiwork_core.clock import Clock
from viiwork_core.config.schema import Config
from viiwork_core.contracts.policy import Score
from viiwork_core.engines.slots import SlotBook
from viiwork_core.errors import CacheRefused
from viiwork_core.kvshare.arrivals import read_header
from viiwork_core.kvshare.caches import Caches, Control, Target
from viiwork_core.kvshare.deliveries import Deliveries
from viiwork_core.kvshare.delta import Layout
from viiwork_core.kvshare.pace import Limits
from viiwork_core.kvshare.receiving import Carrier
from viiwork_core.kvshare.replicas import ReplicaStore
from viiwork_core.kvshare.sending import Delivery, Sender
from viiwork_core.kvshare.tally import Tally
from viiwork_core.mesh.member import Member
from viiwork_core.node.background import Background
from viiwork_core.node.ledger import store_room
from viiwork_core.node.meshwork import Mesh
from viiwork_core.node.models import Models
from viiwork_core.node.upload import told, upload
from viiwork_core.registry.guard import attempt
from viiwork_core.security.ring import SecretRing

PARTIALS_S = 60.0
"""How long a transfer to this node that broke off can go on."""


async def open_sharing(
    config: Config,
    models: Models,
    secret: SecretRing | None,
    mesh: Mesh | None,
    *,
    book: SlotBook,
    control: Control,
    background: Background,
    target: Target,
    clock: Clock,
    score: Callable[[str], Score | None],
    buried: Callable[[str], int | None],
) -> Caches:
    """Open the store and start the sender, if any model's caches are shared and there is a mesh for it."""
    tally, deliveries = Tally(clock), Deliveries()
    store: ReplicaStore | None = None
    sender: Sender[Member] | None = None
    left: list[tuple[str, str]] = []
    if models.shared and mesh is not None:
        room = store_room(config)
        store = await asyncio.to_thread(_store(config, room, clock).open)
        left = await asyncio.to_thread(_left, _folder(config))
        links, limits = mesh.links, _limits(config)
        sender = Sender(
            partial(upload, links),
            lambda: replica_keys(config, secret)[0],
            clock,
            max_bytes=room,
            limits=lambda model: limits.get(model, Limits()),
            layout=lambda model, path: _layout(models, model, path),
            name=lambda member: member.node,
            store=store,
            ended=partial(_ended, tally, deliveries),
        )
        background.serve(sender.run())
    caches = Caches(
        models.shared,
        slotted=models.slotted,
        book=book,
        store=store,
        sender=sender,
        control=control,
        target=target,
        clock=clock,
        score=score,
        buried=buried,
        tally=tally,
        deliveries=deliveries,
    )
    caches.found(left)
    return caches


def _ended(tally: Tally, deliveries: Deliveries, ended: Delivery[Member]) -> None:
    told(ended, tally)
    deliveries.ended(ended)


def replica_keys(config: Config, secret: SecretRing | None) -> tuple[bytes, ...]:
    """The key that caches are sealed with, and after it those that are believed too.

    In an open mesh it is made from the mesh's name, which is no secret: it keeps apart two meshes and nothing else.
    """
    if secret is None:
        return (hashlib.blake2b(config.mesh.name.encode(), digest_size=32, key=b"viiwork open replica").digest(),)
    others = (one.replica for one in secret.all if one.replica != secret.replica)
    return (secret.replica, *others)


async def take(caches: Caches, config: Config, secret: SecretRing | None, origin: str, carrier: Carrier) -> None:
    """Receive a replica from a member that was believed. Raises ViiworkError."""
    await caches.take(carrier, *replica_keys(config, secret), origin=origin)


def _folder(config: Config) -> Path:
    return config.node.state_dir / "kv" / "replicas"


def _left(folder: Path) -> list[tuple[str, str]]:
    """(model, session) of the replicas that an earlier run has left. Blocking."""
    found = []
    for file in folder.glob("*.json"):
        with suppress(OSError, CacheRefused):
            header = read_header(file)
            found.append((header.model, header.session))
    return found


def _store(config: Config, room: int, clock: Clock) -> ReplicaStore:
    return ReplicaStore(_folder(config), room, clock, keep_partials_s=PARTIALS_S)


def _limits(config: Config) -> dict[str, Limits]:
    """By model, as they stood at the start."""
    shares = {model.name: model.kv_share for model in config.models if model.kv_share}
    return {name: Limits(one.parallel_transfers, one.bandwidth_mbit * 1e6 / 8) for name, one in shares.items()}


def _layout(models: Models, model: str, path: Path) -> Layout:
    """The segments of a saved file; none for a model that a reload has taken away. Blocking."""
    shared = models.shared.get(model)
    return attempt(f"reading a cache file of {model}", lambda: shared.cache.read(path).segments) if shared else ()
