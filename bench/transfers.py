"""Both ends of a transfer, each a process of its own: python -m bench.transfers ROLE FILE PORT.

    receive   a node's way in: its route for replicas on a Hypercorn, and its store
    send      a node's way out: its sender and its client
    take      file -> socket -> file + fsync and nothing else: what the medium and the loopback give
    give      the other end of it

A receiver prints a line when it listens and one when it is done, a sender one when it is done: JSON with the seconds,
the seconds of a core that it took, how many MiB of memory beyond what it had when it began, and how long its event loop
has stood still at most: by the clock, which also counts other programs' turns, and of that on a core.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import hypercorn.asyncio
import hypercorn.config
import uvloop

from viiwork_core.cli.connections import close_with_the_client
from viiwork_core.clock import SystemClock
from viiwork_core.kvshare.incoming import Reception
from viiwork_core.kvshare.receiving import Carrier, receive
from viiwork_core.kvshare.replicas import ReplicaStore
from viiwork_core.kvshare.sealing import ReplicaLabel
from viiwork_core.kvshare.sending import Delivery, Save, Sender
from viiwork_core.mesh.links import Links
from viiwork_core.mesh.member import Member
from viiwork_core.node.upload import upload
from viiwork_core.proxy.request import Receive, Scope, Send
from viiwork_core.security.secret import MeshSecret
from viiwork_core.security.signing import Signer, Verifier
from viiwork_core.web import peers
from viiwork_core.web.claims import Claims

HOST = "127.0.0.1"
BLOCK = 1 << 20
TICK_S = 0.005
KEYS = MeshSecret.from_bytes(bytes(range(32)))


def tell(**fields: float) -> None:
    """One line for whoever started this."""
    sys.stdout.write(f"{json.dumps(fields)}\n")
    sys.stdout.flush()


def peak_mib() -> float:
    """The most that was resident so far."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)  # macOS, in bytes


class Toll:
    """What a process has taken from here on. On a loop, `watch` notes when that stands still."""

    def __init__(self) -> None:
        self._peak, self._cpu = peak_mib(), time.process_time()
        self._gap = self._busy = 0.0

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            due, cpu = time.monotonic() + TICK_S, time.thread_time()
            await asyncio.sleep(TICK_S)
            self._gap = max(self._gap, time.monotonic() - due)
            self._busy = max(self._busy, time.thread_time() - cpu)

    def told(self) -> dict[str, float]:
        return {
            "extra_mib": peak_mib() - self._peak,
            "cpu_s": time.process_time() - self._cpu,
            "gap_ms": self._gap * 1000,
            "busy_ms": self._busy * 1000,
        }


def receiving(file: Path, port: int) -> None:
    """Take one replica into a store beside `file`."""
    store = ReplicaStore(file.parent / "store", 1 << 40, SystemClock(), keep_partials_s=60).open()
    done = asyncio.Event()

    async def take(_origin: str, carrier: Carrier) -> None:
        await receive(carrier, Reception(store, accepts=lambda _: None), KEYS.replica)
        done.set()

    verifier = Verifier(KEYS.signature, node_id="receiver", clock=SystemClock())
    surface = cast(Any, SimpleNamespace(claims=Claims(verifier, lambda _: ()), take_replica=take))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await peers.replica(surface, scope, receive, send)

    uvloop.run(_served(app, port, done))


async def _served(app: Callable[..., Any], port: int, done: asyncio.Event) -> None:
    close_with_the_client()
    config = hypercorn.config.Config()
    config.bind, config.accesslog, config.errorlog = [f"{HOST}:{port}"], None, None
    toll = Toll()
    watching = asyncio.create_task(toll.watch())
    tell(listens=port)
    await hypercorn.asyncio.serve(cast(Any, app), config, shutdown_trigger=cast(Any, done.wait))
    watching.cancel()
    tell(**toll.told())


def sending(file: Path, port: int) -> None:
    """Send the file as a node does."""
    uvloop.run(_sent(file, file.stat().st_size, port))


async def _sent(file: Path, size: int, port: int) -> None:
    member = Member(node="receiver", node_id="receiver", host=HOST, api_port=port)
    label = ReplicaLabel(model="m", group="g", fingerprint="f" * 64, session="5e" * 16, turn=1, tokens=1)
    ended = asyncio.get_running_loop().create_future()
    async with Links(node="sender", signer=Signer(KEYS.signature, node="sender", clock=SystemClock())) as links:
        sender = Sender[Member](
            partial(upload, links), KEYS.replica, SystemClock(), max_bytes=1 << 40, ended=ended.set_result
        )
        toll = Toll()
        running = [asyncio.create_task(work) for work in (sender.run(), toll.watch())]
        sender.offer(Save(file, label, member, size))
        done: Delivery[Member] = await ended
        told = toll.told()
        for task in running:
            task.cancel()
        await asyncio.wait(running)
    if done.error is not None:
        sys.exit(done.error)
    tell(seconds=done.seconds, **told)


def taking(file: Path, port: int) -> None:
    """Receive a file, and say so once it lies on the disk."""
    toll = Toll()
    with socket.create_server((HOST, port)) as server:
        tell(listens=port)
        connection, _ = server.accept()
        with connection, file.open("xb", buffering=0) as out:
            block = memoryview(bytearray(BLOCK))
            while got := connection.recv_into(block):
                out.write(block[:got])
            os.fsync(out.fileno())
            connection.sendall(b"!")
    tell(**toll.told())


def giving(file: Path, port: int) -> None:
    """Send a file block by block."""
    began, toll = time.monotonic(), Toll()
    with socket.create_connection((HOST, port)) as connection, file.open("rb", buffering=0) as source:
        block = memoryview(bytearray(BLOCK))
        while got := source.readinto(block):
            connection.sendall(block[:got])
        connection.shutdown(socket.SHUT_WR)
        if connection.recv(1) != b"!":
            sys.exit("the other end did not take it all")
    tell(seconds=time.monotonic() - began, **toll.told())


ROLES = {"receive": receiving, "send": sending, "take": taking, "give": giving}


def main() -> None:
    """Entry point."""
    role, file, port = sys.argv[1:]
    ROLES[role](Path(file), int(port))


if __name__ == "__main__":
    main()
