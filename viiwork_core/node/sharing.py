"""This node's side of kv_share: the store of others' caches, the sender of its own, and what happens around a turn."""

from __future__ import annotations

import asyncio

from viiwork_core.clock import Clock
from viiwork_core.config.schema import Config
from viiwork_core.engines.slots import SlotBook
from viiwork_core.kvshare.caches import Caches, Control, Target
from viiwork_core.kvshare.replicas import ReplicaStore
from viiwork_core.kvshare.sending import Sender
from viiwork_core.mesh.member import Member
from viiwork_core.node import delivery
from viiwork_core.node.background import Background
from viiwork_core.node.meshwork import Mesh
from viiwork_core.node.models import Models
from viiwork_core.security.ring import SecretRing


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
) -> Caches:
    """Open the store and start the sender, if any model's caches are shared and there is a secured mesh for it."""
    store: ReplicaStore | None = None
    sender: Sender[Member] | None = None
    if models.shared and mesh is not None and secret is not None:
        room = int(sum(m.kv_share.max_gib for m in config.models if m.kv_share) * (1 << 30))
        store = await asyncio.to_thread(ReplicaStore(config.node.state_dir / "kv" / "replicas", room, clock).open)
        links = mesh.links
        sender = Sender(
            lambda member, stream: delivery.upload(links, member, stream),
            lambda: secret.replica,
            clock,
            max_bytes=room,
            ended=delivery.told,
        )
        background.serve(sender.run())
    return Caches(
        models.shared,
        slotted=models.slotted,
        book=book,
        store=store,
        sender=sender,
        control=control,
        target=target,
        clock=clock,
    )
