"""A membership that begins after the node: nobody is there until then, and it ends well at any time."""

from __future__ import annotations

import asyncio

import pytest

from viiwork_core.errors import ConfigError
from viiwork_core.mesh.awaited import AwaitedMembership
from viiwork_core.mesh.membership import KinshipMembership, LocalMember
from viiwork_core.security.secret import MeshSecret

SECRET = MeshSecret.from_bytes(b"s" * 32)


def gossip(name: str, host: str, port: int = 0) -> KinshipMembership:
    me = LocalMember(node=name, node_id="1", host=host, gossip_port=port, api_port=8086)
    return KinshipMembership(me, mesh="m", secret=SECRET)


def test_nobody_is_there_until_it_begins() -> None:
    async def run() -> None:
        late, other = AwaitedMembership(), gossip("b", "127.0.0.2")
        await other.start()
        changes = late.changes()
        first = asyncio.create_task(anext(changes))
        assert (late.address, late.members(), await late.join([other.address])) == ("", (), 0)
        assert not first.done()
        assert await late.begin(gossip("a", "127.0.0.1"))
        assert await first == ()
        assert await late.join([other.address]) == 1
        assert [member.node for member in await anext(changes)] == ["b"]
        assert late.members()[0].gossip == other.address
        assert late.address.startswith("127.0.0.1:")
        await changes.aclose()
        await late.leave()
        await other.leave()
        assert late.members() == ()

    asyncio.run(asyncio.wait_for(run(), 30))


def test_an_end_before_the_beginning() -> None:
    async def run() -> None:
        late = AwaitedMembership()
        following = asyncio.create_task(_all(late))
        await asyncio.sleep(0)
        await late.leave()
        assert await following == []
        assert not await late.begin(gossip("a", "127.0.0.1"))
        assert (late.address, late.members(), await late.join(["127.0.0.2:7946"])) == ("", (), 0)
        await late.leave()

    asyncio.run(asyncio.wait_for(run(), 30))


async def _all(membership: AwaitedMembership) -> list[object]:
    return [members async for members in membership.changes()]


def test_a_beginning_that_fails_can_be_repeated() -> None:
    async def run() -> None:
        late, other = AwaitedMembership(), gossip("b", "127.0.0.1")
        await other.start()
        port = int(other.address.rpartition(":")[2])
        with pytest.raises(ConfigError, match="cannot listen"):
            await late.begin(gossip("a", "127.0.0.1", port))
        assert late.address == ""
        assert await late.begin(gossip("a", "127.0.0.3", port))
        await late.leave()
        await other.leave()

    asyncio.run(asyncio.wait_for(run(), 30))
