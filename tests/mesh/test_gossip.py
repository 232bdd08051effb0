"""What mesh/membership promises holds for the gossip engine and for its twin in memory alike."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

import pytest

from viiwork_core.mesh.event import BACKLOG, EventKind, Listeners, MemberEvent
from viiwork_core.mesh.member import LocalMember, Member
from viiwork_core.mesh.membership import Gossip, KinshipMembership
from viiwork_core.security.ring import SecretRing
from viiwork_core.security.secret import MeshSecret
from viiwork_core.testing.memory_membership import MemoryMembership, MemoryNetwork

NEW, OLD = (MeshSecret.from_bytes(letter * 32) for letter in (b"n", b"o"))

Make = Callable[..., "Started"]


class Started:
    """Makes members of one kind, and ends them."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.network = MemoryNetwork()
        self._stack = AsyncExitStack()
        self._hosts = 0

    async def __aenter__(self) -> Started:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    async def node(
        self, name: str, node_id: str = "1", *, secret: SecretRing | MeshSecret | None = NEW, host: str | None = None
    ) -> Gossip:
        self._hosts += 1
        local = LocalMember(name, node_id, host or f"127.0.0.{self._hosts}", gossip_port=0, api_port=9)
        made: KinshipMembership | MemoryMembership = (
            KinshipMembership(local, mesh="m", secret=secret)
            if self.kind == "kinship"
            else MemoryMembership(self.network, local, mesh="m", secret=secret)
        )
        self._stack.push_async_callback(made.leave)
        await made.start()
        return made


@pytest.fixture(params=["kinship", "memory"])
def make(request: pytest.FixtureRequest) -> Callable[[], Started]:
    return lambda: Started(request.param)


async def until(gossip: Gossip, wanted: Callable[[tuple[Member, ...]], bool]) -> tuple[Member, ...]:
    async with asyncio.timeout(30), aclosing(gossip.changes()) as changes:
        async for members in changes:
            if wanted(members):
                return members
    raise AssertionError("the membership ended")


@asynccontextmanager
async def told(gossip: Gossip) -> AsyncIterator[list[MemberEvent]]:
    """Its events, from now on."""
    heard: list[MemberEvent] = []

    async def listen() -> None:
        async for event in gossip.events():
            heard.append(event)  # noqa: PERF401  # seen while it grows

    task = asyncio.create_task(listen())
    await asyncio.sleep(0)
    try:
        yield heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  # what is waited for has no event of its own
            await asyncio.sleep(0.005)


def test_joins_leaves_and_metas_are_told(make: Callable[[], Started]) -> None:
    async def run() -> None:
        async with make() as mesh:
            a, b = await mesh.node("a"), await mesh.node("b")
            async with told(a) as heard:
                assert await b.join([a.address]) == 1
                (seen,) = await until(a, bool)
                assert (seen.node, seen.node_id, seen.key) == ("b", "1", NEW.id)
                await b.set_meta({"kv": "127.0.0.9:1", "role": "gateway"})
                await until(a, lambda now: [(one.kv_address, one.role) for one in now] == [("127.0.0.9:1", "gateway")])
                await b.set_meta({"kv": None})
                await until(a, lambda now: [one.kv_address for one in now] == [None])
                with pytest.raises(ValueError, match="role"):
                    await b.set_meta({"role": "king"})
                await b.leave()
                await until(a, lambda now: not now)
                await eventually(lambda: len(heard) == 4)
            kinds = [EventKind.JOINED, EventKind.UPDATED, EventKind.UPDATED, EventKind.LEFT]
            assert [(event.kind, event.name) for event in heard] == [(kind, "b/1") for kind in kinds]
            assert a.stats()
            assert b.stats() == {}

    asyncio.run(run())


def test_a_restart_on_one_machine_is_one_member(make: Callable[[], Started]) -> None:
    async def run() -> None:
        async with make() as mesh:
            a, old = await mesh.node("a"), await mesh.node("b", "old", host="127.0.0.7")
            await old.join([a.address])
            await until(a, bool)
            await asyncio.sleep(0.002)  # an epoch is told in milliseconds
            new = await mesh.node("b", "new", host="127.0.0.7")
            await new.join([a.address])
            (seen,) = await until(a, lambda now: any(one.node_id == "new" for one in now))
            assert seen.node_id == "new"
            assert [one.node_id for one in new.namesakes()] == ["old"]
            elsewhere = await mesh.node("b", "another", host="127.0.0.8")
            await elsewhere.join([a.address])
            both = await until(a, lambda now: len(now) == 2)
            assert [one.node_id for one in both] == ["another", "new"], "on two machines they are two"

    asyncio.run(run())


def test_keys_are_told_by_their_ids_and_used(make: Callable[[], Started]) -> None:
    async def run() -> None:
        async with make() as mesh:
            ring = SecretRing(NEW, OLD)
            both = await mesh.node("both", secret=ring)
            assert both.key_ids() == (OLD.id, NEW.id)
            await both.use_key(NEW.id)
            assert both.key_ids() == (NEW.id, OLD.id)
            assert ring.signature == NEW.signature
            with pytest.raises(ValueError, match="no secret"):
                await both.use_key("00000000")
            open_one = await mesh.node("open", secret=None)
            assert open_one.key_ids() == ()
            with pytest.raises(ValueError, match="open mesh"):
                await open_one.use_key(NEW.id)

    asyncio.run(run())


@pytest.mark.parametrize("there", [NEW, OLD], ids=["all have the new one", "nobody has it"])
def test_who_knows_both_secrets_joins_whichever_is_used(make: Callable[[], Started], there: MeshSecret) -> None:
    async def run() -> None:
        async with make() as mesh:
            a = await mesh.node("a", secret=there)
            ring = SecretRing(NEW, OLD)
            both = await mesh.node("both", secret=ring)
            assert await both.join([a.address]) == 1
            assert ring.used == there
            assert [one.key for one in both.members()] == [there.id]
            await until(a, bool)

    asyncio.run(run())


def test_where_nobody_answers_the_key_is_as_before(make: Callable[[], Started]) -> None:
    async def run() -> None:
        async with make() as mesh:
            stranger = await mesh.node("a", secret=MeshSecret.from_bytes(b"x" * 32))
            ring = SecretRing(NEW, OLD)
            both = await mesh.node("both", secret=ring)
            assert await both.join([stranger.address]) == 0
            assert ring.used == OLD

    asyncio.run(run())


def test_an_open_mesh_dials_nobody_outside_its_network(make: Callable[[], Started]) -> None:
    async def run() -> None:
        async with make() as mesh:
            a = await mesh.node("a", secret=None)
            assert await a.join(["10.0.0.1:7946", "8.8.8.8:7946", "[64:ff9b::808:808]:7946", "nonsense"]) == 0

    asyncio.run(run())


# The twin in memory: what a test can do to it


def test_a_partition_is_suspected_then_dead_and_heals() -> None:
    async def run() -> None:
        async with Started("memory") as mesh:
            a, b, c = [await mesh.node(name) for name in "abc"]
            assert isinstance(a, MemoryMembership)
            await b.join([a.address])
            await c.join([b.address])
            assert [one.node for one in a.members()] == ["b", "c"]
            async with told(a) as heard:
                mesh.network.partition([a], [b, c])  # type: ignore[list-item]  # all are in memory
                mesh.network.pass_time()
                assert [(one.node, one.suspect) for one in a.members()] == [("b", True), ("c", True)]
                mesh.network.pass_time()
                assert a.members() == ()
                assert [one.node for one in b.members()] == ["c"]
                mesh.network.heal()
                mesh.network.pass_time()
                assert [one.node for one in a.members()] == ["b", "c"]
                await eventually(lambda: len(heard) == 6)
            assert [event.kind for event in heard] == [kind for kind in ("suspect", "dead", "joined") for _ in "bc"]

    asyncio.run(run())


def test_a_stall_is_no_death_and_losses_are_lost() -> None:
    async def run() -> None:
        async with Started("memory") as mesh:
            a, b = await mesh.node("a"), await mesh.node("b")
            mesh.network.lose(joins=2)
            assert [await b.join([a.address]) for _ in range(3)] == [0, 0, 1]
            async with told(a) as heard:
                mesh.network.partition([a], [b])  # type: ignore[list-item]  # both are in memory
                mesh.network.pass_time()
                mesh.network.heal()
                mesh.network.pass_time()
                await eventually(lambda: len(heard) == 2)
            assert [event.kind for event in heard] == ["suspect", "recovered"]

    asyncio.run(run())


def test_a_killed_one_is_missed() -> None:
    async def run() -> None:
        async with Started("memory") as mesh:
            a, b = await mesh.node("a"), await mesh.node("b")
            await b.join([a.address])
            mesh.network.kill(b)  # type: ignore[arg-type]  # it is in memory
            mesh.network.pass_time()
            mesh.network.pass_time()
            assert a.members() == ()

    asyncio.run(run())


def test_a_slow_listener_is_told_that_it_lost_some() -> None:
    async def run() -> None:
        listeners = Listeners()
        async with aclosing(listeners.events()) as events:
            first = asyncio.ensure_future(anext(events))
            await asyncio.sleep(0)
            listeners.tell(MemberEvent(EventKind.JOINED, "first"))
            assert (await first).name == "first"
            for number in range(BACKLOG + 3):
                listeners.tell(MemberEvent(EventKind.JOINED, str(number)))
            assert (await anext(events)).kind is EventKind.LOST
            assert (await anext(events)).name == "3"

    asyncio.run(run())
