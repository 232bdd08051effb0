"""The programs that take part, each in a process of its own on 127.0.0.1."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.cores import Cores, only

HERE = Path(__file__).parent
MODEL = "dummy"
SLOTS = 32
"""As many as the load has connections, so that no request has to queue."""

START_S = 30.0
_END_S = 20.0


class DidNotStart(Exception):  # named for what happened
    """A program ended, or was not ready in time; with what it said last."""


@dataclass(frozen=True)
class Program:
    """A program that runs."""

    name: str
    port: int
    pid: int


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _running(
    name: str, command: Sequence[str], folder: Path, cores: frozenset[int]
) -> Iterator[Callable[[Callable[[], int | None]], Program]]:
    """Yields what waits until a function tells the program's port. The program is ended with the block."""
    said = folder / f"{name}.log"
    with said.open("wb") as log, only(cores):
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603

    def ready(port_of: Callable[[], int | None]) -> Program:
        deadline = time.monotonic() + START_S
        while (port := port_of()) is None:
            if process.poll() is not None or time.monotonic() > deadline:
                raise DidNotStart(f"{name}: {said.read_text(errors='replace')[-2000:]}")
            time.sleep(0.02)
        return Program(name, port, process.pid)

    try:
        yield ready
    finally:
        process.terminate()
        try:
            process.wait(_END_S)
        finally:
            process.kill()
            process.wait()


@contextmanager
def backend(folder: Path, cores: Cores) -> Iterator[Program]:
    """The dummy backend."""
    with _listening("backend", "dummy_backend.py", ("{port}",), folder, cores.rest) as program:
        yield program


@contextmanager
def relay(name: str, script: str, behind: Program, folder: Path, cores: Cores) -> Iterator[Program]:
    """One of the relays that a node is compared with, in front of a backend."""
    words = ("{port}", f"http://127.0.0.1:{behind.port}")
    with _listening(name, script, words, folder, _tested(cores)) as program:
        yield program


@contextmanager
def _listening(name: str, script: str, words: Sequence[str], folder: Path, cores: frozenset[int]) -> Iterator[Program]:
    port = free_port()
    command = [sys.executable, str(HERE / script), *(word.format(port=port) for word in words)]
    with _running(name, command, folder, cores) as ready:
        yield ready(lambda: port if _answers(port) else None)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _tested(cores: Cores) -> frozenset[int]:
    return frozenset() if cores.tested is None else frozenset({cores.tested})


@contextmanager
def node(behind: Program, folder: Path, cores: Cores) -> Iterator[Program]:
    """`viiwork serve` with all its defaults, alone on this machine, with one healthy backend."""
    engine = {"engine": "external", "external": {"urls": [f"http://127.0.0.1:{behind.port}"]}}
    with serving([{"name": MODEL, "context": 4096, "parallel": SLOTS, **engine}], folder, cores) as program:
        yield program


@contextmanager
def serving(
    models: Sequence[Mapping[str, object]], folder: Path, cores: Cores, **blocks: Mapping[str, object]
) -> Iterator[Program]:
    """`viiwork serve`, alone on this machine, with these models all healthy and further blocks of configuration."""
    state = folder / "state"
    config = {
        "node": {"name": "bench", "state_dir": str(state)},
        "api": {"port": 0},
        "mesh": {"network": "none"},
        "models": list(models),
        **blocks,
    }
    (folder / "viiwork.yaml").write_text(json.dumps(config))  # JSON is YAML
    command = [str(Path(sys.executable).with_name("viiwork")), "serve", "--config", str(folder / "viiwork.yaml")]
    with _running("node", command, folder, _tested(cores)) as ready:
        yield ready(lambda: _healthy(state / "node.json"))


def _healthy(identity: Path) -> int | None:
    """The port of the node that wrote this file, once its backend is healthy."""
    try:
        api = json.loads(identity.read_text())["api"]
        with urllib.request.urlopen(f"{api}/v1/status", timeout=5) as answer:  # noqa: S310  # the node's own address
            models = json.load(answer)["models"]
    except (OSError, ValueError):
        return None
    states = {one["status"] for model in models for one in model["backends"]}
    return int(api.rpartition(":")[2]) if states == {"healthy"} else None
