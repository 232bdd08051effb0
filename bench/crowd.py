"""What a mesh of many members costs a node that has nothing else to do."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bench.lan import Machine
from bench.nodes import Failed, Mesh, Node, until
from bench.scenes import rest

_HOST = Machine("127.0.0.1")


@dataclass(frozen=True)
class Cost:
    """Percent of a core."""

    alone: float
    among: float
    """With the members there: their gossip, and a signed poll of each every second."""

    polls: float
    """Polls a second."""

    def __str__(self) -> str:
        more = self.among - self.alone
        both = f"{self.among:.2f} % of a core, and {self.alone:.2f} % alone"
        return f"{both}: gossip and {self.polls:.0f} polls a second cost {more:.2f} %"


def cost(folder: Path, members: int, *, seconds: float) -> Cost:
    """Of a real node; the members are one process with a real membership and a tiny server each. Raises Failed."""
    folder.mkdir()
    mesh, port = Mesh(folder), _HOST.free_port()
    with mesh.node(_HOST, "lonely", port=port, seeds=[], models=[]) as node:
        until(lambda: node.status() != {}, "the node answers")
        (alone,) = rest([node], seconds)
        command = [sys.executable, "-m", "bench.members", str(members), f"{_HOST.address}:{port}"]
        environ = {**os.environ, "VIIWORK_MESH_SECRET": mesh.secret}
        with subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, cwd=Path(__file__).parents[1]
        ) as crowd:
            _all_there(crowd, node, members)
            before, began = _polls(crowd), time.monotonic()
            (among,) = rest([node], seconds)
            polls = (_polls(crowd) - before) / (time.monotonic() - began)
            if len(node.members()) != members:
                raise Failed(f"only {len(node.members())} of {members} simulated members stayed")
        return Cost(alone.cpu, among.cpu, polls)


def _all_there(crowd: subprocess.Popen[bytes], node: Node, members: int) -> None:
    assert crowd.stdout is not None
    if crowd.stdout.readline() != b"ready\n":
        raise Failed("the simulated members did not come up")
    until(lambda: len(node.members()) == members, f"all {members} are members")
    until(lambda: _polled(node) == 3, "all were polled")


def _polls(crowd: subprocess.Popen[bytes]) -> int:
    assert crowd.stdin is not None
    assert crowd.stdout is not None
    crowd.stdin.write(b"\n")
    crowd.stdin.flush()
    return int(crowd.stdout.readline())


def _polled(node: Node) -> int:
    """How many models they report."""
    reply = node.ask("GET", "/v1/models")
    return 0 if reply is None else len(reply.json["data"])
