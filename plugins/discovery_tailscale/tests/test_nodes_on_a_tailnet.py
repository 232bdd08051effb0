"""Real nodes, `viiwork serve`, that find each other by what their tailscaled says. The tailnet is in 127.0.0.0/8."""

from __future__ import annotations

import base64
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, TypeVar

import pytest

from viiwork_discovery_tailscale.testing.tailscaled import Tailscaled, machine, needs_login, status

HERE, THERE, SILENT = "127.0.0.71", "127.0.0.72", "127.0.0.73"
SECRET = base64.b64encode(secrets.token_bytes(32)).decode()

T = TypeVar("T")


def until(holds: Callable[[], T], what: Callable[[], str], within: float = 40.0) -> T:
    deadline = time.monotonic() + within
    while not (found := holds()):
        assert time.monotonic() < deadline, what()
        time.sleep(0.05)
    return found


def free_port(*hosts: str) -> int:
    """Free for TCP and UDP on all of them."""
    while True:
        with socket.socket() as first:
            first.bind((hosts[0], 0))
            port: int = first.getsockname()[1]
        try:
            for host in hosts:
                for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
                    with socket.socket(socket.AF_INET, kind) as one:
                        one.bind((host, port))
        except OSError:
            continue
        return port


class Node:
    def __init__(self, name: str, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.name, self.folder, self.process, self.port = name, folder, process, 0

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def events(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log().splitlines(keepends=True) if line.endswith("}\n")]
        return [line for line in lines if line["event"] == event]

    def heard(self, event: str) -> dict[str, Any]:
        def found() -> list[dict[str, Any]]:
            assert self.process.poll() is None, self.log()
            return self.events(event)

        return until(found, self.log)[0]

    def get(self, path: str, host: str = "127.0.0.1") -> Any:
        connection = HTTPConnection(host, self.port, timeout=10)
        try:
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def listens(self, host: str = "127.0.0.1") -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((host, self.port)) == 0

    def members(self) -> list[tuple[str, str]]:
        return [(member["node"], member["addr"]) for member in self.get("/v1/status")["members"]]

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(20)


@contextmanager
def started(name: str, folder: Path, mesh: dict[str, Any], **more: Any) -> Iterator[Node]:
    folder.mkdir()
    config = {
        "node": {"name": name, "state_dir": str(folder / "state")},
        "api": {"port": 0},
        "mesh": {"rejoin_interval": "1s", "capacity_poll": "200ms", **mesh},
        **more,
    }
    (folder / "viiwork.yaml").write_text(json.dumps(config))  # JSON is YAML
    program = str(Path(sys.executable).with_name("viiwork"))
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "VIIWORK_PLUGINS": "discovery_tailscale",
        "VIIWORK_MESH_SECRET": "" if mesh.get("open") else SECRET,
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, "serve", "--config", str(folder / "viiwork.yaml"), "--log-json", "--log-level", "debug"],
            stdin=subprocess.DEVNULL,
            stderr=log,
            env={key: value for key, value in environ.items() if value},
        )
    node = Node(name, folder, process)
    try:
        node.port = int(node.heard("starting")["api"].rpartition(":")[2])
        until(node.listens, node.log)
        yield node
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(20)
            finally:
                process.kill()
                process.wait()


@contextmanager
def connected(host: str, port: int) -> Iterator[tuple[HTTPResponse, socket.socket]]:
    """One connection that follows the log, and one that asks nothing."""
    following = HTTPConnection(host, port, timeout=20)
    following.request("GET", "/v1/activity/stream")
    with closing(following), socket.create_connection((host, port), timeout=20) as idle:
        yield following.getresponse(), idle


def block(tailscaled: Tailscaled) -> dict[str, Any]:
    return {"socket": str(tailscaled.place), "ranges": ["127.0.0.0/8"]}


@contextmanager
def two_daemons(folder: Path) -> Iterator[tuple[Tailscaled, Tailscaled]]:
    with Tailscaled.running(folder / "a") as here, Tailscaled.running(folder / "b") as there:
        yield here, there


@pytest.mark.parametrize("open_mesh", [False, True])
def test_two_nodes_find_each_other(tmp_path_factory: pytest.TempPathFactory, open_mesh: bool) -> None:
    folder, port = tmp_path_factory.mktemp("net"), free_port(HERE, THERE)
    mesh = {"bind_port": port, "open": open_mesh}
    with two_daemons(folder) as (here, there):
        here.says(status(machine(SILENT), machine(THERE), own=HERE))
        there.says(status(machine(SILENT), machine(HERE), own=THERE))
        first = mesh | {"network": "tailscale", "tailscale": block(here)}
        # The other viiwork's words for the same.
        second = mesh | {"network": "tailnet", "tailnet": {"enabled": "auto", **block(there)}}
        with started("one", folder / "1", first) as one, started("two", folder / "2", second) as two:
            until(lambda: one.members() == [("two", THERE)], one.log)
            until(lambda: two.members() == [("one", HERE)], two.log)
            assert one.get("/v1/capacity", HERE)["node"] == "one"
            assert not one.listens("127.0.0.74")
            assert (one.end(), two.end()) == (0, 0)


def test_the_own_address_is_awaited_while_the_node_serves_its_machine(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, port = tmp_path_factory.mktemp("late"), free_port(HERE, THERE)
    mesh = {"network": "tailnet", "bind_port": port}
    with two_daemons(folder) as (here, there):
        here.says(needs_login())
        there.says(status(own=THERE))  # sees nobody: only the late one can find the other
        with (
            started("late", folder / "1", mesh | {"tailscale": block(here)}) as late,
            started("two", folder / "2", mesh | {"tailscale": block(there)}) as two,
        ):
            assert "logged out" in late.heard("the mesh waits for this node's address")["reason"]
            found = late.get("/v1/status")
            assert (found["mesh"], found["members"]) == ("secured", [])
            assert not late.listens(HERE)
            here.says(status(machine(THERE), own=HERE))
            assert late.heard("the mesh begins")["address"] == HERE
            until(lambda: late.members() == [("two", THERE)], late.log)
            until(lambda: two.members() == [("late", HERE)], two.log)
            assert late.get("/v1/capacity", HERE)["node"] == "late"
            with connected(HERE, late.port) as (stream, idle):
                assert late.end() == 0
                assert stream.read()
                assert idle.recv(1) == b""
            until(lambda: two.members() == [], two.log)


def test_a_node_that_never_gets_an_address_serves_and_ends(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("none")
    tailscale = {"socket": str(folder / "no-daemon")}
    with started("alone", folder / "1", {"network": "tailnet", "tailscale": tailscale}) as alone:
        assert "no-daemon" in alone.heard("the mesh waits for this node's address")["reason"]
        assert alone.get("/v1/models")["data"] == []
        assert alone.end() == 0


def test_a_silent_daemon_holds_up_neither_the_api_nor_the_seeds(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, port = tmp_path_factory.mktemp("stuck"), free_port(HERE, THERE)
    mesh = {"network": "seeds", "bind_port": port}
    with two_daemons(folder) as (stuck, _):
        stuck.silent = True
        first = mesh | {"seeds": [f"{THERE}:{port}"], "advertise": HERE, "tailscale": block(stuck)}
        second = mesh | {"seeds": [f"{HERE}:{port}"], "advertise": THERE}
        with started("one", folder / "1", first) as one, started("two", folder / "2", second) as two:
            until(lambda: one.members() == [("two", THERE)], one.log)
            until(lambda: two.members() == [("one", HERE)], two.log)
            assert stuck.asked
            assert one.end() == 0
