"""Nodes on machines of a LAN, as a user starts them: `viiwork serve` in a process of its own, spoken to over HTTP."""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from bench.lan import WITH_US, Machine

CHAT = "/v1/chat/completions"
START_S = 60.0
_END_S = 25.0

T = TypeVar("T")


class Failed(Exception):  # named for what happened
    """What was waited for did not come, in a sentence."""


def until(holds: Callable[[], T | None], what: str, within: float = START_S, every: float = 0.02) -> T:
    """What `holds` returns once it is true. Raises Failed."""
    deadline = time.monotonic() + within
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise Failed(f"not within {within:g} s: {what}")
        time.sleep(every)
    return found


@dataclass(frozen=True)
class Reply:
    """An answer over HTTP."""

    status: int
    node: str
    """Who served it, where it was a model that did."""

    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class _Connection(HTTPConnection):
    """From a machine."""

    def __init__(self, machine: Machine, port: int, timeout: float) -> None:
        super().__init__(machine.address, port, timeout=timeout)
        self._from = machine

    def connect(self) -> None:
        self.sock = self._from.connect(self.host, self.port, float(self.timeout or START_S))


@dataclass
class Node:
    """A running node."""

    machine: Machine
    name: str
    folder: Path
    process: subprocess.Popen[bytes]
    port: int = 0

    def ask(self, method: str, path: str, body: object = None, timeout: float = START_S) -> Reply | None:
        """What it answers to a client on its own machine; None: nothing."""
        connection = _Connection(self.machine, self.port, timeout)
        data = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
            response = connection.getresponse()
            return Reply(response.status, response.getheader("X-Viiwork-Node") or "", response.read())
        except (OSError, HTTPException):
            return None
        finally:
            connection.close()

    def chat(self, model: str, words: str, **more: object) -> Reply | None:
        """The answer to one question that enters here."""
        messages = [{"role": "user", "content": words}]
        return self.ask("POST", CHAT, {"model": model, "messages": messages, **more})

    def status(self) -> dict[str, Any]:
        """GET /v1/status; empty: it does not answer."""
        reply = self.ask("GET", "/v1/status", timeout=5)
        return reply.json if reply is not None and reply.status == 200 else {}

    def members(self) -> set[str]:
        """The other nodes that it knows."""
        return {member["node"] for member in self.status().get("members", ())}

    def backend(self) -> dict[str, Any]:
        """Its only backend; empty: none yet."""
        models = self.status().get("models") or [{}]
        return next(iter(models[0].get("backends", ())), {})

    def healthy(self) -> bool:
        return self.backend().get("status") == "healthy"

    def kill(self) -> float:
        """kill -9, and when it was done, monotonic."""
        self.process.send_signal(signal.SIGKILL)
        at = time.monotonic()
        self.process.wait()
        return at

    def said(self, most: int = 2000) -> str:
        """The end of its log."""
        return (self.folder / "log").read_text(errors="replace")[-most:]


@dataclass(frozen=True)
class Mesh:
    """What the nodes of one mesh share."""

    folder: Path
    secret: str = field(default_factory=lambda: base64.b64encode(secrets.token_bytes(32)).decode(), repr=False)

    @contextmanager
    def node(
        self, machine: Machine, name: str, *, port: int, seeds: Sequence[str], models: Sequence[Mapping[str, Any]]
    ) -> Iterator[Node]:
        """A node that has said where it listens, with its gossip at `port`. It is ended with the block.

        Raises Failed.
        """
        folder = self.folder / name
        folder.mkdir()
        config = {
            "node": {"name": name, "state_dir": str(folder / "state")},
            "api": {"port": 0},
            "mesh": {"network": "seeds", "advertise": machine.address, "bind_port": port, "seeds": seeds},
            "models": models,
        }
        (folder / "viiwork.yaml").write_text(json.dumps(config))  # JSON is YAML
        node = Node(machine, name, folder, self._start(machine, folder))
        try:
            node.port = until(lambda: _port(node), f"{name} says where it listens")
            yield node
        finally:
            end(node.process)

    def _start(self, machine: Machine, folder: Path) -> subprocess.Popen[bytes]:
        program = str(Path(sys.executable).with_name("viiwork"))
        command = [*WITH_US, program, "serve", "--log-json", "--config", str(folder / "viiwork.yaml")]
        environ = {**os.environ, "VIIWORK_MESH_SECRET": self.secret}
        with (folder / "log").open("wb") as log, machine.inside():
            # In a session of its own: Ctrl-C at a terminal is for whoever started it, which then ends it in order.
            return subprocess.Popen(  # noqa: S603
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ, start_new_session=True
            )


def _port(node: Node) -> int | None:
    if node.process.poll() is not None:
        raise Failed(f"{node.name} has ended: {node.said()}")
    for line in (node.folder / "log").read_text(errors="replace").splitlines():
        if '"event": "starting"' in line:
            return urlsplit(str(json.loads(line)["api"])).port
    return None


def end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, and SIGKILL for one that does not end within its time."""
    process.terminate()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
