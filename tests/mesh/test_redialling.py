"""Real gossip on loopback: a node that is restarted without knowing anybody's address comes back, by either side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from viiwork_core.mesh.address_book import AddressBook
from viiwork_core.mesh.member import LocalMember, split_address
from viiwork_core.mesh.membership import KinshipMembership
from viiwork_core.mesh.redialling import Redialling
from viiwork_core.security.secret import MeshSecret
from viiwork_core.testing.fake_clock import FakeClock

SECRET = MeshSecret.from_bytes(b"s" * 32)


@asynccontextmanager
async def node(
    name: str, host: str, node_id: str = "1", port: int = 0, secret: MeshSecret | None = SECRET
) -> AsyncIterator[KinshipMembership]:
    me = LocalMember(node=name, node_id=node_id, host=host, gossip_port=port, api_port=8086)
    membership = KinshipMembership(me, mesh="m", secret=secret)
    await membership.start()
    try:
        yield membership
    finally:
        await membership.leave()


async def seen(membership: KinshipMembership, *names: str) -> None:
    """Wait until these are the members."""
    async with asyncio.timeout(20):
        async for members in membership.changes():
            if [member.node for member in members] == list(names):
                return


class Memory:
    """What a node has that redials."""

    def __init__(self, folder: Path) -> None:
        self.clock, self._file = FakeClock(), folder / "members.json"

    def book(self) -> AddressBook:
        """As the node finds it at its start."""
        book = AddressBook(self._file, self.clock, mesh="home")
        book.load()
        return book

    def redialling(self, membership: KinshipMembership) -> Redialling:
        return Redialling(membership, self.book(), self.clock)


@pytest.fixture
def memory(tmp_path: Path) -> Memory:
    return Memory(tmp_path)


def test_the_one_that_was_restarted_dials_whom_it_knew(memory: Memory) -> None:
    async def run() -> None:
        async with node("b", "127.0.0.2") as b:
            async with node("a", "127.0.0.1") as a:
                await b.join([a.address])
                await seen(a, "b")
                await memory.redialling(a).once()
                _, port = split_address(a.address)
            await seen(b)
            async with node("a", "127.0.0.1", "2", port) as again:
                await memory.redialling(again).once()
                assert [member.node for member in again.members()] == ["b"]
                await seen(b, "a")

    asyncio.run(run())


def test_the_one_that_stays_dials_who_was_restarted(memory: Memory) -> None:
    async def run() -> None:
        async with node("b", "127.0.0.2") as b:
            redialling = memory.redialling(b)
            async with node("a", "127.0.0.1") as a:
                await b.join([a.address])
                await redialling.once()
                _, port = split_address(a.address)
            await seen(b)
            await redialling.once()
            assert b.members() == (), "nobody is there"
            async with node("a", "127.0.0.1", "2", port) as again:
                memory.clock.advance(2.0)
                await redialling.once()
                assert [member.node_id for member in b.members()] == ["2"]
                await seen(again, "b")

    asyncio.run(run())


def test_an_address_is_not_believed(memory: Memory) -> None:
    """Where a member was, a node of another mesh is now."""

    async def run() -> None:
        async with node("b", "127.0.0.2") as b:
            redialling = memory.redialling(b)
            async with node("a", "127.0.0.1") as a:
                await b.join([a.address])
                await redialling.once()
                _, port = split_address(a.address)
            await seen(b)
            async with node("a", "127.0.0.1", "2", port, MeshSecret.from_bytes(b"o" * 32)) as stranger:
                await redialling.once()
                assert b.members() == stranger.members() == ()

    asyncio.run(run())
