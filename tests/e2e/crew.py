"""Nodes with fake engines, each on a machine of its own on one switch, whose cables a test may pull."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

import pytest
from hosts import Host
from mesh import new_secret
from nodes import CHAT, MODEL, Node, Reply, _Connection, chat_body, started, until, user

from bench.lan import PORT, Lan, Machine

ALPHA, BETA, GAMMA, DELTA = "alpha", "beta", "gamma", "delta"
NAMES = (ALPHA, BETA, GAMMA, DELTA)
GOSSIP, ENGINE = 7946, 9000
SLOTS = 4
PAUSE_S = 0.02
"""Between an answer and the same client's next request: what is tried is not how fast they are."""


class Crew:
    """Who runs where. Names come in the machines' order."""

    def __init__(self, network: Lan, folder: Path, names: tuple[str, ...] = NAMES) -> None:
        self.network, self.folder, self.names = network, folder, names
        self.secret = new_secret()
        self.nodes: dict[str, Node] = {}
        self.models: dict[str, dict[str, Any]] = {}
        """By machine."""

        self._stacks: dict[str, ExitStack] = {}
        self._engines = ExitStack()

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def machine(self, name: str) -> Machine:
        return self.network.machines[self.names.index(name)]

    def seed(self, name: str) -> str:
        return f"{self.machine(name).address}:{GOSSIP}"

    # Engines

    def engine(self, name: str, *options: str) -> dict[str, Any]:
        """A fake engine on a machine, and its entry of the node's configuration. It outlives the node."""
        command = [sys.executable, "-m", "viiwork_core.testing.fake_engine", "--port", str(ENGINE), "--alias", MODEL]
        with self.machine(name).inside():
            process = subprocess.Popen([*command, "--slots", str(SLOTS), *options], stdin=subprocess.DEVNULL)
        self._engines.callback(process.wait)
        self._engines.callback(process.kill)
        external = {"urls": [f"http://127.0.0.1:{ENGINE}"]}
        entry = {"name": MODEL, "engine": "external", "context": 4096, "parallel": SLOTS, "external": external}
        return self.models.setdefault(name, entry)

    def asked(self, name: str) -> int:
        """How many requests for an answer the engine of a machine was sent."""
        reply = _ask(Host("127.0.0.1", self.machine(name).namespace), ENGINE, "GET", "/fake/requests")
        return sum(one["method"] == "POST" for one in reply.json)

    # Nodes

    def start(
        self,
        name: str,
        *models: Mapping[str, Any],
        seeds: Sequence[str] = (),
        secret: str = "",
        environ: Mapping[str, str] | None = None,
        called: str = "",
        host: Host | None = None,
        routing: Mapping[str, object] | None = None,
        **mesh: object,
    ) -> Node:
        """A node on the machine of that name, with the state of the one that ran there before.

        `seeds`: names of the crew, or addresses; `called`: another name than the machine's; `host`: where the test
        speaks to it.
        """
        config = {
            "node": {"name": called or name, "state_dir": str(self.folder / f"{name}-state")},
            "api": {"port": 0},
            "mesh": {
                "network": "seeds",
                "advertise": self.machine(name).address,
                "seeds": [self.seed(one) if one in self.names else one for one in seeds],
                "capacity_poll": "200ms",
                "rejoin_interval": "1s",
                **mesh,
            },
            "routing": {"queue_timeout": "30s", **(routing or {})},
            "health": {"interval": "0.3s"},
            "models": models,
        }
        stack = self._stacks[name] = ExitStack()
        folder = self.folder / f"{name}-{len(list(self.folder.iterdir()))}"
        there, secret = host or self.machine(name), secret or self.secret
        node = stack.enter_context(started(there, called or name, folder, config, secret, **(environ or {})))
        self.nodes[name] = node
        until(node.healthy, f"{name} is healthy\n{node.log()}", 60)
        return node

    def stop(self, name: str) -> None:
        """In order, if it still runs."""
        self.nodes.pop(name)
        self._stacks.pop(name).close()

    def close(self) -> None:
        for node in self.nodes.values():
            node.process.terminate()  # together, for the sake of time
        for stack in self._stacks.values():
            stack.close()
        self._engines.close()

    def complete(self) -> bool:
        """Whether all know all, and each that has the model answers through each other one."""
        names = {node.name for node in self.nodes.values()}
        return all(node.members() == names - {node.name} for node in self.nodes.values())

    def met(self, *serving: str) -> None:
        until(self.complete, f"all know all\n{''.join(node.log() for node in self.nodes.values())}", 60)
        for name in serving:
            for entry in self.nodes.values():
                reached(entry, self.nodes[name].name)

    # Load

    @contextmanager
    def load(self, entry: str, clients: int = 4, **more: object) -> Iterator[Load]:
        """Clients at one node that ask again soon after each answer; all answers are in after the block."""
        load = Load(self.nodes[entry], more)
        with ThreadPoolExecutor(clients) as threads:
            running = [threads.submit(load.run) for _ in range(clients)]
            try:
                yield load
            finally:
                load.stop.set()
        for one in running:
            one.result()


class Load:
    """What clients got."""

    def __init__(self, entry: Node, more: Mapping[str, object]) -> None:
        self.entry, self._more = entry, dict(more)
        self.stop = threading.Event()
        self.by: list[str] = []
        """Who answered, in order."""

        self.lost: list[str] = []
        """What came in place of an answer."""

    def run(self) -> None:
        while not self.stop.wait(PAUSE_S):
            try:
                reply = self.entry.chat([user("hello")], max_tokens=4, **self._more)  # type: ignore[arg-type]  # of a body
            except (OSError, HTTPException) as error:
                self.lost.append(repr(error))
                continue
            if reply.status == 200:
                self.by.append(reply.headers["x-viiwork-node"])
            else:
                self.lost.append(f"{reply.status} {reply.body[:300]!r}")

    def more(self, count: int, by: str = "") -> None:
        """Wait for so many more answers, of one node or of any."""
        begun = len(self.by)
        until(lambda: sum(by in ("", one) for one in self.by[begun:]) >= count, f"{count} more answers {by}", 60)


def reached(entry: Node, host: str) -> None:
    """Wait until a node answers through another."""
    until(
        lambda: entry.chat([user("hello")], host=host).status == 200, f"{entry.name} reaches {host}\n{entry.log()}", 60
    )


@contextmanager
def crew(network: Lan, folder: Path, names: tuple[str, ...] = NAMES) -> Iterator[Crew]:
    made = Crew(network, folder, names)
    try:
        yield made
    finally:
        made.close()


def open_stream(entry: Node, host: str, tokens: int) -> tuple[_Connection, Any]:
    """An answer that is being streamed, of which the first bytes are there; the connection is the caller's to close."""
    connection = _Connection(entry.host, entry.host.address, entry.port)
    body = chat_body([user("go on")], max_tokens=tokens, stream=True)
    connection.request("POST", f"{CHAT}?host={host}", body)
    response = connection.getresponse()
    assert response.status == 200, response.read()
    assert response.read1(1)
    return connection, response


def _ask(host: Host, port: int, method: str, path: str) -> Reply:
    connection = _Connection(host, host.address, port)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        return Reply(response.status, {}, response.read())
    finally:
        connection.close()


# Faults


@contextmanager
def rule(machine: Machine, *words: str) -> Iterator[None]:
    """A rule of nftables for what comes in at a machine's interface."""
    if shutil.which("nft") is None:
        pytest.skip("packets are dropped by the program nft (the package nftables), which is not installed")
    table = "viiwork"
    lines = [
        f"add table inet {table}",
        f"add chain inet {table} in {{ type filter hook input priority 0; }}",
        f'add rule inet {table} in iifname "{PORT}" {" ".join(words)}',
    ]
    with machine.inside():
        done = subprocess.run(["nft", "-f", "-"], input="\n".join(lines), text=True, capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"nft does not work here: {done.stderr.strip()}")
    try:
        yield
    finally:
        with machine.inside(), suppress(subprocess.CalledProcessError):
            subprocess.run(["nft", "delete", "table", "inet", table], check=True, capture_output=True)


def alias_state(node: Node) -> tuple[str, dict[str, str | None]]:
    """The digest of a node's aliases, and what each stands for."""
    told = json.loads(node.get("/v1/aliases").body)
    return told["digest"], {one["name"]: one["target"] for one in told["aliases"]}
