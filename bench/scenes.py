"""What happens to a mesh while it is measured: it rests, somebody comes, a cable is pulled, somebody is killed."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import psutil

from bench.lan import Lan, Machine
from bench.nodes import Failed, Node, until

CLIENTS = 8
LOAD_S = 1.0
AFTER_S = 5.0
"""How long a killed node's address is watched."""

SPLIT_S = 120.0
_EVERY_S = 0.01


@dataclass(frozen=True)
class Rest:
    """One idle node."""

    cpu: float
    """Percent of a core."""

    rss_mb: float


def rest(nodes: Sequence[Node], seconds: float) -> list[Rest]:
    """What each costs while nobody asks; their engines do not count."""
    processes = [psutil.Process(node.process.pid) for node in nodes]
    before, began = [_spent(one) for one in processes], time.monotonic()
    time.sleep(seconds)
    took = time.monotonic() - began
    return [
        Rest(100 * (_spent(one) - spent) / took, one.memory_info().rss / (1 << 20))
        for one, spent in zip(processes, before, strict=True)
    ]


def _spent(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def join(entry: Node, newcomer: Node, model: str) -> float:
    """Seconds from a healthy backend on a new node to the first answer for its model through another one."""
    with ThreadPoolExecutor(1) as thread:
        answered = thread.submit(_first_answer, entry, model)
        until(newcomer.healthy, f"{newcomer.name} is healthy: {newcomer.said()}", every=_EVERY_S)
        healthy = time.monotonic()
        return max(0.0, answered.result() - healthy)


def _first_answer(entry: Node, model: str) -> float:
    def answers() -> bool:
        reply = entry.chat(model, "hello", max_tokens=1)
        return reply is not None and reply.status == 200

    until(answers, f"{entry.name} answers for {model}", every=_EVERY_S)
    return time.monotonic()


@dataclass(frozen=True)
class Split:
    """A switch that fell in two, and was mended."""

    known_s: float
    """Until every node had given up all those on the other side."""

    heal_s: float
    """From the mending until all knew all."""


def split(network: Lan, nodes: Sequence[Node], *, others: int) -> Split:
    """Cut the last so many off from the rest, until all of them know."""
    away, names = nodes[-others:], {node.name for node in nodes}
    here = nodes[:-others]
    network.split(node.machine for node in away)
    began = time.monotonic()
    until(lambda: _only(here) and _only(away), "both halves know", within=SPLIT_S, every=0.1)
    known = time.monotonic() - began
    network.heal()
    began = time.monotonic()
    until(
        lambda: all(node.members() == names - {node.name} for node in nodes),
        "both halves list all members",
        within=SPLIT_S,
    )
    return Split(known, time.monotonic() - began)


def _only(half: Sequence[Node]) -> bool:
    names = {node.name for node in half}
    return all(node.members() == names - {node.name} for node in half)


@dataclass(frozen=True)
class Kill:
    """A node that was killed while it was being asked."""

    watched_s: float
    """From kill -9 until its address was watched: what was sent there before that was not seen."""

    last_s: float | None
    """From kill -9 to the last request that arrived there; None: none did."""

    sent: int
    """Requests that arrived there."""

    polls: int
    """Questions for its capacity that did: nobody had forgotten the address."""

    answers: Counter[str]
    """By node; "lost": no answer, or none that is one."""

    @property
    def route_s(self) -> float:
        """From kill -9 to the last moment at which a request can have been sent there."""
        return self.watched_s if self.last_s is None else self.last_s

    def __str__(self) -> str:
        told = ", ".join(f"{name} {count}" for name, count in sorted(self.answers.items()))
        last = "none" if self.last_s is None else f"{self.sent}, the last after {self.last_s:.3f} s"
        seen = f"its address was watched from {self.watched_s:.3f} s on, where {self.polls} polls arrived"
        return f"{seen}, and of requests {last}; answers: {told}"


def kill(entry: Node, victim: Node, model: str) -> Kill:
    """Ask at one node all the time, and kill another one. Raises Failed when that one was never asked."""
    with _load(entry, model) as answers:
        until(lambda: answers[victim.name] > 0, f"{victim.name} is asked")
        time.sleep(LOAD_S)
        at = victim.kill()
        with trap(victim.machine, victim.port) as caught:
            time.sleep(AFTER_S)
    if not caught.polls:
        raise Failed(f"nothing arrived at the address of {victim.name}, which {entry.name} was to poll")
    last = max(caught.requests) - at if caught.requests else None
    return Kill(caught.since - at, last, len(caught.requests), caught.polls, answers)


@dataclass
class Trap:
    """What arrives at a dead node's address."""

    since: float
    requests: list[float] = field(default_factory=list)
    """When, monotonic."""

    polls: int = 0


@contextmanager
def _load(entry: Node, model: str) -> Iterator[Counter[str]]:
    """Clients that ask again as soon as they have their answer."""
    answers: Counter[str] = Counter()
    stop = threading.Event()

    def client() -> None:
        while not stop.is_set():
            reply = entry.chat(model, "hello", max_tokens=4)
            answers[reply.node if reply is not None and reply.status == 200 else "lost"] += 1

    with ThreadPoolExecutor(CLIENTS) as threads:
        try:
            running = [threads.submit(client) for _ in range(CLIENTS)]
            yield answers
        finally:
            stop.set()
    for one in running:
        one.result()


@contextmanager
def trap(machine: Machine, port: int) -> Iterator[Trap]:
    """Listens where a dead node did. Each connection is reset, as nobody's would be. Raises Failed."""
    with machine.inside():
        listener = _listening(machine.address, port)
    caught = Trap(time.monotonic())
    listener.settimeout(0.05)
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                _look(connection, caught)

    with listener, ThreadPoolExecutor(1) as thread:
        try:
            watching = thread.submit(serve)
            yield caught
        finally:
            stop.set()
        watching.result()


def _listening(address: str, port: int) -> socket.socket:
    """Where the dead node listened; the kernel may still be busy with its connections for a moment."""

    def bound() -> socket.socket | None:
        try:
            return socket.create_server((address, port))
        except OSError:
            return None

    try:
        return until(bound, f"port {port} of the dead node is free", within=5, every=0.005)
    except Failed as error:
        raise Failed(f"{error}; who else listens there?") from error


def _look(connection: socket.socket, caught: Trap) -> None:
    with connection, suppress(OSError):
        connection.settimeout(0.5)
        if connection.recv(64).startswith(b"POST "):
            caught.requests.append(time.monotonic())
        else:
            caught.polls += 1
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
