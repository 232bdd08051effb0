"""A process that used the mesh ends as it was told to: no signal, no abort, on any of many tries."""

from __future__ import annotations

import subprocess
import sys

import pytest

LEAVES = """
import asyncio
from viiwork_core.mesh.membership import KinshipMembership, LocalMember
from viiwork_core.security.secret import MeshSecret

async def follow(mesh):
    async for _ in mesh.changes():
        pass

async def main():
    secret = MeshSecret.from_bytes(b"s" * 32)
    nodes = []
    for n in (1, 2):
        me = LocalMember(node=f"n{n}", node_id="1", host=f"127.0.0.{n}", gossip_port=0, api_port=9)
        nodes.append(KinshipMembership(me, mesh="m", secret=secret))
        await nodes[-1].start()
    followers = [asyncio.create_task(follow(node)) for node in nodes]
    assert await nodes[1].join([nodes[0].address]) == 1
    END

asyncio.run(main())
"""

ORDERLY = LEAVES.replace(
    "END", "await asyncio.gather(*(node.leave() for node in nodes)); await asyncio.wait(followers)"
)
ABRUPT = LEAVES.replace("END", "pass")


def exits(program: str, times: int) -> list[int]:
    """Exit codes of so many runs, four at once."""
    codes: list[int] = []
    while len(codes) < times:
        batch = [subprocess.Popen([sys.executable, "-c", program]) for _ in range(min(4, times - len(codes)))]
        codes += [process.wait(timeout=60) for process in batch]
    return codes


def test_an_orderly_exit_is_clean_every_time() -> None:
    assert exits(ORDERLY, 30) == [0] * 30


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_orderly_exit_is_clean_a_hundred_times() -> None:
    assert exits(ORDERLY, 100) == [0] * 100


def test_an_exit_without_leaving_is_clean_too() -> None:
    assert exits(ABRUPT, 8) == [0] * 8
