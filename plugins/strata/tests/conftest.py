"""Doubles of Strata as processes, started by the engine's own launch line."""

from __future__ import annotations

import hashlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import httpx
import pytest

from viiwork_core import Address, CommandOutput, Context, EngineRefused, EngineUnreachable, SessionRef, Spec
from viiwork_strata.cache import StrataCache
from viiwork_strata.engine import StrataEngine
from viiwork_strata.options import StrataOptions
from viiwork_strata.testing import CHECKOUT, write_config

SESSION = SessionRef(key="5e551011")
OPTIONS = StrataOptions.model_validate({"dir": CHECKOUT, "python": sys.executable, "warmup": 0})


CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello, which of you is here?"}]
LONG = [{"role": "user", "content": "a conversation of some length " * 20}]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def _no_command(argv: Sequence[str]) -> CommandOutput:
    raise EngineRefused(f"no command is expected: {argv}")


async def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(await anyio.Path(path).read_bytes()).hexdigest()
    except OSError as error:
        raise EngineRefused(f"{path} cannot be read") from error


@pytest.fixture
def context(tmp_path: Path) -> Context:
    return Context(node="a", state_dir=tmp_path, run_command=_no_command, digest=_digest)


@dataclass(frozen=True)
class Running:
    """A double that is ready, with the plugin's two objects for it."""

    spec: Spec
    address: Address
    engine: StrataEngine
    cache: StrataCache
    process: subprocess.Popen[bytes]

    @property
    def folder(self) -> Path:
        assert self.spec.cache_dir is not None
        return self.spec.cache_dir

    async def chat(self, messages: list[dict[str, str]], **extra: object) -> dict[str, object]:
        """The plain answer's body."""
        answer = await self.post("/v1/chat/completions", {"messages": messages, **extra})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    async def post(self, path: str, body: object, **headers: str) -> httpx.Response:
        async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
            return await client.post(self.address.url + path, json=body, headers=headers)


Start = Callable[..., Awaitable[Running]]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.fixture
async def start(tmp_path: Path, context: Context) -> AsyncIterator[Start]:
    """Starts doubles: `await start("a", context=8192)`; they end with the test."""
    async with AsyncExitStack() as stack:

        async def started(
            name: str, *args: str, sessions: bool = True, prepare: bool = True, **config: object
        ) -> Running:
            home = tmp_path / name
            home.mkdir()
            path = write_config(home, "tiny", **config)  # type: ignore[arg-type]  # as the test gave it
            cache_dir = home / "sessions" if sessions else None
            length, parallel = config.get("context", 4096), config.get("parallel", 1)
            assert isinstance(length, int)
            assert isinstance(parallel, int)
            wanted = Spec("tiny", 0, 1, path, length, parallel, gpus=(0,), args=args, cache_dir=cache_dir)
            spec = replace(wanted, port=free_port())
            engine = await stack.enter_async_context(StrataEngine(OPTIONS, context))
            cache = await stack.enter_async_context(StrataCache(OPTIONS, context))
            if prepare:
                await engine.prepare(spec)
            process = spawn(engine, spec)
            stack.callback(end, process)
            address = Address(spec.host, spec.port)
            await until_ready(engine, address, process)
            return Running(spec, address, engine, cache, process)

        yield started


def spawn(engine: StrataEngine, spec: Spec) -> subprocess.Popen[bytes]:
    launch = engine.launch(spec)
    env = {"PATH": os.environ["PATH"], **launch.env}
    return subprocess.Popen(launch.argv, env=env, stdout=subprocess.DEVNULL)


def piped(*argv: str) -> subprocess.Popen[bytes]:
    """A process whose lines are read here, with the parent's PATH and nothing else."""
    return subprocess.Popen(argv, env={"PATH": os.environ["PATH"]}, stdout=subprocess.PIPE)


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    assert process.wait(20) == 0


async def until_ready(engine: StrataEngine, address: Address, process: subprocess.Popen[bytes] | None = None) -> None:
    async def is_ready() -> bool:
        assert process is None or process.poll() is None, "the double has ended by itself"
        return await answers(engine, address)

    await until(is_ready)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask until it is so, 30 s at most."""
    with anyio.fail_after(30):
        while True:
            if await condition():
                return
            await anyio.sleep(0.01)


async def answers(engine: StrataEngine, address: Address) -> bool:
    try:
        return (await engine.probe(address)).ready
    except EngineUnreachable:
        return False


async def get(running: Running, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        return await client.get(running.address.url + path, headers=headers)


async def events(running: Running, **body: object) -> list[str]:
    """A stream's lines, comments among them."""
    answer = await running.post(CHAT, {"messages": HELLO, "stream": True, **body})
    return [line for line in answer.text.split("\n\n") if line]


async def until_says(running: Running, path: str, **wanted: object) -> None:
    async def is_so() -> bool:
        return bool(wanted.items() <= (await get(running, path)).json().items())

    await until(is_so)


async def kill_engine(running: Running) -> None:
    running.process.send_signal(signal.SIGUSR1)
    await until_says(running, "/health", loaded=False)
