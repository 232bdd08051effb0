"""Real gossip on loopback: who comes, who leaves, who dies, and who is not let in."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import kinship
import kinship.blocking
import pytest
from structlog.testing import capture_logs

from viiwork_core.errors import ConfigError
from viiwork_core.mesh.dialling import REDIALS_AT_ONCE
from viiwork_core.mesh.membership import GUESSES_AT_ONCE, JOINS_AT_ONCE, KinshipMembership, LocalMember, Member
from viiwork_core.security.secret import MeshSecret

SECRET = MeshSecret.from_bytes(b"s" * 32)
OTHER = MeshSecret.from_bytes(b"o" * 32)

CHILD = """
import asyncio, sys
from viiwork_core.mesh.membership import KinshipMembership, LocalMember
from viiwork_core.security.secret import MeshSecret

async def main():
    me = LocalMember(node="child", node_id=sys.argv[2], host="127.0.0.3", gossip_port=0, api_port=9)
    mesh = KinshipMembership(me, mesh="m", secret=MeshSecret.from_bytes(b"s" * 32))
    await mesh.start()
    await mesh.join([sys.argv[1]])
    await asyncio.to_thread(sys.stdin.read)
    await mesh.leave()

asyncio.run(main())
"""


@asynccontextmanager
async def node(
    name: str, *, node_id: str = "1", host: str = "127.0.0.1", mesh: str = "m", secret: MeshSecret | None = SECRET
) -> AsyncIterator[KinshipMembership]:
    me = LocalMember(node=name, node_id=node_id, host=host, gossip_port=0, api_port=8086, kv_address="127.0.0.1:9")
    membership = KinshipMembership(me, mesh=mesh, secret=secret)
    await membership.start()
    try:
        yield membership
    finally:
        await membership.leave()


async def until(
    membership: KinshipMembership, wanted: Callable[[tuple[Member, ...]], bool], deadline_s: float = 20.0
) -> tuple[Member, ...]:
    """The members as soon as they are as `wanted`."""
    async with asyncio.timeout(deadline_s):
        async for members in membership.changes():
            if wanted(members):
                return members
    raise AssertionError("the membership ended")


def names(members: tuple[Member, ...]) -> list[str]:
    return [member.node for member in members]


def test_a_join_makes_both_see_each_other() -> None:
    async def run() -> None:
        async with node("a") as a, node("b", host="127.0.0.2") as b:
            assert await b.join([a.address]) == 1
            (seen,) = b.members()
            assert seen == Member("a", "1", "127.0.0.1", 8086, "127.0.0.1:9", gossip=a.address, key=SECRET.id)
            assert names(await until(a, bool)) == ["b"]

    asyncio.run(run())


def test_three_meet_through_one() -> None:
    async def run() -> None:
        async with node("a") as a, node("b", host="127.0.0.2") as b, node("c", host="127.0.0.3") as c:
            await asyncio.gather(b.join([a.address]), c.join([a.address]))
            for here, others in ((a, ["b", "c"]), (b, ["a", "c"]), (c, ["a", "b"])):
                assert names(await until(here, lambda found: len(found) == 2)) == others

    asyncio.run(run())


@pytest.mark.parametrize("secret", [SECRET, None], ids=["secured", "open"])
@pytest.mark.parametrize(
    ("mesh", "other"),
    [
        pytest.param("m", OTHER, id="another secret"),
        pytest.param("m2", "same", id="another name"),
        pytest.param("m", "opposite", id="open and secured"),
    ],
)
def test_who_differs_is_not_let_in(secret: MeshSecret | None, mesh: str, other: MeshSecret | str) -> None:
    stranger = other if isinstance(other, MeshSecret) else secret if other == "same" else None if secret else SECRET

    async def run() -> None:
        async with node("a", secret=secret) as a, node("x", mesh=mesh, secret=stranger) as x:
            assert await x.join([a.address]) == 0
            assert await a.join([x.address]) == 0
            assert a.members() == x.members() == ()

    asyncio.run(run())


def test_nobody_there_is_no_error() -> None:
    async def run() -> None:
        async with node("a") as a:
            with socket.socket() as free:
                free.bind(("127.0.0.4", 0))
                assert await a.join([f"127.0.0.4:{free.getsockname()[1]}"]) == 0

    asyncio.run(run())


def test_an_address_in_use_is_a_sentence() -> None:
    async def run() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            me = LocalMember("a", "1", "127.0.0.1", taken.getsockname()[1], 1)
            membership = KinshipMembership(me, mesh="m", secret=SECRET)
            with pytest.raises(ConfigError, match="cannot listen on 127") as caught:
                await membership.start()
            await membership.leave()
        assert "mesh.bind_port" in caught.value.remedy

    asyncio.run(run())


def test_a_leave_is_seen_and_ends_the_changes() -> None:
    async def run() -> None:
        async with node("a") as a, node("b", host="127.0.0.2") as b:
            await b.join([a.address])
            await until(a, bool)
            rest = asyncio.create_task(until(b, lambda found: not found))
            await b.leave()
            assert await until(a, lambda found: not found) == ()
            assert b.members() == ()
            with pytest.raises(AssertionError, match="ended"):
                await rest
            await b.leave()
            assert await b.join([a.address]) == 0

    asyncio.run(run())


class Hurried(KinshipMembership):
    """Notes how many of its dials were over when it began to leave."""

    dials: tuple[asyncio.Task[int], ...] = ()
    over: int | None = None

    def _close(self) -> None:
        self.over = sum(dial.done() for dial in self.dials)
        super()._close()


def test_leaving_does_not_wait_for_dials_that_nobody_answers() -> None:
    async def run() -> None:
        membership = Hurried(LocalMember("a", "1", "127.0.0.1", 0, 9), mesh="m", secret=SECRET)
        await membership.start()
        with socket.create_server(("127.0.0.2", 0), backlog=64) as silent:
            address = f"127.0.0.2:{silent.getsockname()[1]}"
            count = JOINS_AT_ONCE + GUESSES_AT_ONCE + REDIALS_AT_ONCE
            membership.dials = tuple(asyncio.create_task(membership.join([address])) for _ in range(count))
            await asyncio.sleep(0)  # so that all are under way
            await membership.leave()
            assert await asyncio.gather(*membership.dials) == [0] * count
        assert membership.over == 0

    asyncio.run(run())


@asynccontextmanager
async def child(seed: str, node_id: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A member in a process of its own, which leaves when its stdin ends."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", CHILD, seed, node_id, stdin=asyncio.subprocess.PIPE
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def test_a_killed_process_is_seen_and_its_restart_is_a_new_member_at_once() -> None:
    async def run() -> None:
        async with node("a") as a:
            async with child(a.address, "old") as process:
                await until(a, bool)
                os.kill(process.pid, signal.SIGKILL)
            async with child(a.address, "new"):
                (seen,) = await until(a, lambda found: any(member.node_id == "new" for member in found))
                assert seen.node == "child", "two runs of one node on one machine are one member, the later one"

    asyncio.run(run())


def test_a_stopped_process_is_suspect_and_comes_back() -> None:
    async def run() -> None:
        async with node("a") as a, child(a.address, "1") as process:
            await until(a, bool)
            os.kill(process.pid, signal.SIGSTOP)
            try:
                await until(a, lambda found: any(member.suspect for member in found))
            finally:
                os.kill(process.pid, signal.SIGCONT)
            await until(a, lambda found: any(not member.suspect for member in found))

    asyncio.run(run())


def test_a_namesake_is_no_member_and_is_told_apart() -> None:
    async def run() -> None:
        async with node("a") as a, node("a", node_id="2", host="127.0.0.2") as b, node("c", host="127.0.0.3") as c:
            await b.join([a.address])
            await c.join([a.address])
            assert names(await until(a, bool)) == ["c"]
            assert names(await until(c, lambda found: len(found) == 2)) == ["a", "a"]
            (namesake,) = a.namesakes()
            assert (namesake.node, namesake.node_id, namesake.host) == ("a", "2", "127.0.0.2")
            assert [member.node_id for member in b.namesakes()] == ["1"]
            assert c.namesakes() == ()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("meta", "reason"),
    [
        ({}, "node"),
        ({"v": "1-1", "node": "x", "id": "1", "api": "99999", "role": "node"}, "port"),
        (
            {"v": "2-3", "node": "x", "id": "1", "api": "9", "role": "node"},
            "it speaks wire versions 2-3, this node 1-1",
        ),
    ],
)
def test_a_member_that_makes_no_sense_is_ignored_with_one_line(meta: dict[str, str], reason: str) -> None:
    async def run() -> None:
        async with node("a") as a, node("c", host="127.0.0.3") as c:
            settings = kinship.Config.lan(
                name="x/1", bind="127.0.0.2:0", cluster="viiwork-m", keys=[SECRET.gossip], meta=meta
            )
            with kinship.blocking.Cluster(settings) as stranger:
                await asyncio.to_thread(stranger.join, [a.address])
                await c.join([a.address])
                assert names(await until(a, bool)) == ["c"]

    with capture_logs() as logs:
        asyncio.run(run())
    lines = [log for log in logs if log["member"] == "x/1"]
    assert len(lines) in {1, 2}  # one a node
    assert all(reason in line["reason"] for line in lines)


def test_an_open_mesh_believes_only_its_own_kind_of_network() -> None:
    meta = {"v": "1-1", "node": "x", "id": "1", "api": "1", "role": "node", "kv": "10.0.0.1:80"}

    async def run() -> None:
        async with node("a", secret=None) as a, node("c", secret=None, host="127.0.0.3") as c:
            settings = kinship.Config.lan(
                name="x/1", bind="127.0.0.2:0", cluster="viiwork-m", insecure_plaintext=True, meta=meta
            )
            with kinship.blocking.Cluster(settings) as stranger:
                await asyncio.to_thread(stranger.join, [a.address])
                await c.join([a.address])
                assert names(await until(a, bool)) == ["c"]

    with capture_logs() as logs:
        asyncio.run(run())
    assert {log["reason"] for log in logs} == {
        "10.0.0.1:80 is not in this node's kind of network, which an open mesh demands"
    }
