"""Real MLX servers, started as the core would: the engine's argv and environment, one process each."""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest

from viiwork_core import Address, CommandOutput, Context, EngineRefused, Spec
from viiwork_core.testing.tiny_model import write_mlx
from viiwork_mlx.cache import MlxCache
from viiwork_mlx.engine import MlxEngine
from viiwork_mlx.options import MlxOptions

T = TypeVar("T")

WORDS = tuple("the river keeps a slow boat near the stone bridge while seven birds cross the cold morning sky".split())  # noqa: SIM905 - reads better


async def run_command(argv: Sequence[str]) -> CommandOutput:
    try:
        process = await asyncio.create_subprocess_exec(
            *argv, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
    except OSError as error:
        raise EngineRefused(f"{argv[0]} cannot be started: {error.strerror}") from error
    output, _ = await process.communicate()
    return CommandOutput(process.returncode or 0, output.decode())


async def digest(path: Path) -> str:
    return hashlib.sha256(b"".join(file.read_bytes() for file in files_of(path))).hexdigest()


def files_of(path: Path) -> list[Path]:
    return [file for file in sorted(path.rglob("*")) if file.is_file()] if path.is_dir() else [path]


@pytest.fixture(scope="session")
def context(tmp_path_factory: pytest.TempPathFactory) -> Context:
    return Context("node", tmp_path_factory.mktemp("state"), run_command, digest)


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    return Spec(model="tiny", index=0, backends=1, path=tmp_path, context=8192, parallel=2, port=4001)


def until(condition: Callable[[], T], what: str, seconds: float = 60.0) -> T:
    """Poll until `condition` gives something true."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {seconds} s: {what}")
        time.sleep(0.02)
    return value


@dataclass
class Server:
    """One running wrapper."""

    spec: Spec
    context: Context
    options: MlxOptions = field(default_factory=MlxOptions)
    process: subprocess.Popen[bytes] = field(init=False)
    log: Path = field(init=False)

    def __post_init__(self) -> None:
        assert self.spec.cache_dir is not None
        self.folder = self.spec.cache_dir
        self.log = self.folder.with_suffix(".log")
        launch = MlxEngine(self.options, self.context).launch(self.spec)
        # The core's environment is clean; nothing of the machine's own may be needed.
        env = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ} | dict(launch.env)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(launch.argv, env=env, stdout=log, stderr=log)

    @property
    def address(self) -> Address:
        return Address(self.spec.host, self.spec.port)

    def get(self, path: str) -> httpx.Response:
        with httpx.Client(trust_env=False, timeout=60) as http:
            return http.get(self.address.url + path)

    def post(self, path: str, body: Any, session: str | None = None) -> httpx.Response:
        headers = {} if session is None else {"X-Viiwork-Session": session}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        with httpx.Client(trust_env=False, timeout=60) as http:
            return http.post(self.address.url + path, content=content, headers=headers)

    def chat(self, messages: list[dict[str, str]], session: str | None = None, **fields: Any) -> Any:
        body = {"model": self.spec.model, "messages": messages, "max_tokens": 12, **fields}
        answer = self.post("/v1/chat/completions", body, session)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def slots(self) -> dict[str, int]:
        answer: dict[str, int] = self.get("/slots").json()
        return answer

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return self.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def call(self, act: Callable[[MlxEngine, MlxCache], Any]) -> Any:
        """Await what `act` makes of an open engine and cache transfer."""

        async def run() -> Any:
            async with MlxEngine(MlxOptions(), self.context) as engine, MlxCache(MlxOptions(), self.context) as cache:
                return await act(engine, cache)

        return asyncio.run(run())

    def leave_unanswered(self, body: Any, session: str) -> socket.socket:
        """Send a chat request and return its connection, nothing read yet."""
        content = json.dumps({"model": self.spec.model, **body}).encode()
        connection = socket.create_connection((self.spec.host, self.spec.port))
        head = f"POST /v1/chat/completions HTTP/1.1\r\nX-Viiwork-Session: {session}\r\nContent-Length: {len(content)}"
        connection.sendall(f"{head}\r\n\r\n".encode() + content)
        return connection

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(timeout=20)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def start(tmp_path_factory: pytest.TempPathFactory, context: Context) -> Iterator[Callable[..., Server]]:
    """Start a server on a model's folder; it ends with the tests."""
    if importlib.util.find_spec("mlx_lm") is None:
        pytest.skip("mlx_lm is not installed for this Python")
    servers: list[Server] = []

    def start(path: Path, options: MlxOptions | None = None, **fields: Any) -> Server:
        spec = Spec(model="tiny", index=0, backends=1, path=path, context=8192, parallel=2, port=free_port())
        spec = replace(spec, cache_dir=tmp_path_factory.mktemp("kv"), **fields)
        servers.append(Server(spec, context, options or MlxOptions()))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mlx(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="session")
def pair(start: Callable[..., Server], tiny: Path) -> tuple[Server, Server]:
    servers = start(tiny), start(tiny)
    for server in servers:
        until(server.ready, "a server is ready")
    return servers


@pytest.fixture
def server(pair: tuple[Server, Server]) -> Server:
    return pair[0]


def prose(words: int, start: int = 0) -> str:
    return " ".join(WORDS[(start + 7 * n + n // 16) % len(WORDS)] for n in range(words))


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}
