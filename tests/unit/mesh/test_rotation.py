"""The mesh's secret is changed in one pass over the nodes, and at no moment are two of them apart."""

from __future__ import annotations

import asyncio
import random

import pytest
from structlog.testing import capture_logs

from viiwork_core.mesh.member import LocalMember
from viiwork_core.mesh.rotation import SETTLE_S, Rotation
from viiwork_core.security.ring import SecretRing
from viiwork_core.security.secret import MeshSecret
from viiwork_core.testing.fake_clock import FakeClock
from viiwork_core.testing.memory_membership import MemoryMembership, MemoryNetwork

NEW, OLD = (MeshSecret.from_bytes(letter * 32) for letter in (b"n", b"o"))


class Node:
    """One process: its secrets, its place in the mesh, and its rotation, driven by hand."""

    def __init__(self, scene: Scene, name: str, *secrets: MeshSecret) -> None:
        self.ring = SecretRing(*secrets)
        scene.runs += 1
        local = LocalMember(name, str(scene.runs), f"127.0.0.{ord(name) - 96}", gossip_port=7946, api_port=9)
        self.member = MemoryMembership(scene.network, local, mesh="m", secret=self.ring)
        self.rotation = Rotation(self.member, self.ring, scene.clock)
        self.changing = self.ring.previous is not None

    async def look(self) -> None:
        if self.changing:
            self.changing = not await self.rotation.step()


class Scene:
    """A mesh."""

    def __init__(self) -> None:
        self.network, self.clock, self.runs = MemoryNetwork(), FakeClock(), 0
        self.nodes: dict[str, Node] = {}

    async def start(self, name: str, *secrets: MeshSecret) -> Node:
        node = self.nodes[name] = Node(self, name, *secrets)
        await node.member.start()
        for other in self.nodes.values():
            if other is not node and await node.member.join([other.member.address]):
                break
        return node

    async def stop(self, name: str) -> None:
        await self.nodes.pop(name).member.leave()

    async def settle(self, seconds: float = 0.0) -> None:
        """Everybody looks, time passes, and everybody looks again."""
        for wait in (0.0, seconds):
            self.clock.advance(wait)
            for node in self.nodes.values():
                await node.look()
            self.network.pass_time()

    def together(self) -> bool:
        """Whether every node sees all others, understands what they seal and believes what they sign."""
        seen = all(len(node.member.members()) == len(self.nodes) - 1 for node in self.nodes.values())
        rings = [node.ring for node in self.nodes.values()]
        return seen and all(one.used in other.all for one in rings for other in rings)


@pytest.mark.parametrize("seed", range(5))
def test_one_pass_over_the_nodes_is_enough_and_nobody_is_shut_out(seed: int) -> None:
    async def run() -> None:
        rng, scene = random.Random(seed), Scene()
        names = list("abcde")
        for name in names:
            await scene.start(name, OLD)
        rng.shuffle(names)
        for name in names:
            await scene.settle(rng.uniform(0, 2 * SETTLE_S))
            await scene.stop(name)
            await scene.settle(rng.uniform(0, SETTLE_S / 2))
            await scene.start(name, NEW, OLD)
            await scene.settle()
            assert scene.together(), f"after {name}"
        await scene.settle(SETTLE_S)
        assert {node.ring.used.id for node in scene.nodes.values()} == {NEW.id}
        assert not any(node.changing for node in scene.nodes.values())
        # The previous secret goes with the next start of each, whenever that is.
        for name in names:
            await scene.stop(name)
            await scene.start(name, NEW)
            await scene.settle()
            assert scene.together(), f"after {name}, the new secret alone"

    asyncio.run(run())


def test_a_member_that_does_not_know_the_new_secret_holds_it_up_and_is_named() -> None:
    async def run() -> None:
        scene = Scene()
        await scene.start("a", OLD)
        both = await scene.start("b", NEW, OLD)
        await scene.settle(10 * SETTLE_S)
        assert both.ring.used == OLD
        assert both.changing

    with capture_logs() as logs:
        asyncio.run(run())
    (line,) = logs
    assert (line["event"], line["nodes"]) == (
        "the previous secret stays in use until these nodes know the new one",
        ("a",),
    )


def test_a_node_that_restarts_in_the_middle_is_waited_for() -> None:
    async def run() -> None:
        scene = Scene()
        for name in "abc":
            await scene.start(name, OLD)
        for name in "ab":
            await scene.stop(name)
            await scene.start(name, NEW, OLD)
        await scene.stop("c")
        await scene.settle(SETTLE_S / 2)
        await scene.start("c", OLD)
        await scene.settle(SETTLE_S)
        assert scene.together()

    asyncio.run(run())


def test_a_node_alone_decides_nothing() -> None:
    async def run() -> None:
        scene = Scene()
        alone = await scene.start("a", NEW, OLD)
        await scene.settle(10 * SETTLE_S)
        assert alone.ring.used == OLD

    asyncio.run(run())


def test_a_late_comer_with_both_joins_those_that_have_forgotten_the_previous_one() -> None:
    async def run() -> None:
        scene = Scene()
        for name in "ab":
            await scene.start(name, NEW)
        late = await scene.start("c", NEW, OLD)
        assert late.ring.used == NEW
        assert scene.together()
        await scene.settle(SETTLE_S)
        assert not late.changing

    asyncio.run(run())


def test_a_node_with_one_secret_has_nothing_to_change() -> None:
    async def run() -> None:
        scene = Scene()
        node = await scene.start("a", NEW)
        await asyncio.wait_for(node.rotation.run(), 5)

    asyncio.run(run())
