"""Many members of a mesh in one process: real gossip, and a tiny server each that answers what a node polls.

    python -m bench.members COUNT SEED        (the mesh's secret is in VIIWORK_MESH_SECRET)

Says "ready" once all have joined at SEED, then to each line of its input how many polls it has answered, and ends with
its input. Most answers are that nothing has changed; every fourth is a new report, as of a host that works.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator

import uvloop

from viiwork_core.mesh.member import LocalMember
from viiwork_core.mesh.membership import KinshipMembership
from viiwork_core.mesh.report import CapacityReport, ModelReport, encode_report
from viiwork_core.security.ring import load_ring

HOST = "127.0.0.1"
NEWS = 4
"""Polls from one change to the next."""

_MODELS = 3


class Polled(asyncio.Protocol):
    """One connection of whoever polls. A request is a GET, and comes in one piece."""

    count = 0
    """Answers of all of them."""

    def __init__(self, answers: Iterator[bytes]) -> None:
        self._answers = answers

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: asyncio.Transport = transport  # type: ignore[assignment]  # a connection's is both ways

    def data_received(self, data: bytes) -> None:
        del data
        Polled.count += 1
        self._transport.write(next(self._answers))


def answers(node: str) -> Iterator[bytes]:
    """What a member answers to one poll after another."""
    busy = 0
    while True:
        busy = 1 - busy
        body, tag = encode_report(_report(node, busy)), f'"{busy}"'
        yield _head("200 OK", tag, f"content-type: application/json\r\ncontent-length: {len(body)}\r\n") + body
        for _ in range(NEWS - 1):
            yield _head("304 Not Modified", tag, "")


def _head(status: str, tag: str, more: str) -> bytes:
    return f"HTTP/1.1 {status}\r\netag: {tag}\r\n{more}\r\n".encode()


def _report(node: str, busy: int) -> CapacityReport:
    models = tuple(
        ModelReport(
            name=f"model-{number}",
            engine="llamacpp",
            slots=4,
            busy=busy,
            queued=0,
            backends=2,
            healthy_backends=2,
            ctx=32768,
        )
        for number in range(_MODELS)
    )
    return CapacityReport(node=node, node_id=node, ver="0.1.0", models=models)


async def member(number: int, seed: str) -> KinshipMembership:
    """One of them, in the mesh."""
    node = f"member-{number}"
    replies = answers(node)
    server = await asyncio.get_running_loop().create_server(lambda: Polled(replies), HOST, 0)
    secret = load_ring(os.environ, variable="VIIWORK_MESH_SECRET", previous="", open_mesh=False)
    port = server.sockets[0].getsockname()[1]
    local = LocalMember(node=node, node_id=node, host=HOST, gossip_port=0, api_port=port)
    membership = KinshipMembership(local, mesh="default", secret=secret)
    await membership.start()
    while not await membership.join([seed]):  # noqa: ASYNC110  # a seed that is too busy to answer rings no bell
        await asyncio.sleep(0.2)
    return membership


async def _run(count: int, seed: str) -> None:
    members = await asyncio.gather(*(member(number, seed) for number in range(count)))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while await asyncio.to_thread(sys.stdin.readline):
        sys.stdout.write(f"{Polled.count}\n")
        sys.stdout.flush()
    await asyncio.gather(*(one.leave() for one in members))


if __name__ == "__main__":
    uvloop.run(_run(int(sys.argv[1]), sys.argv[2]))
