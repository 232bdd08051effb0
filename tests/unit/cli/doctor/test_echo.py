"""Ports tried over loopback: what listens, what knocks, and what is told of each."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from viiwork_core.cli.doctor.echo import LONGEST, MARK, Listening, needed, probe
from viiwork_core.contracts.doctor import Finding, Level
from viiwork_core.errors import ConfigError

HERE = "127.0.0.1"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def free_port() -> int:
    """Free for both kinds."""
    with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagram:
        stream.bind((HERE, 0))
        port: int = stream.getsockname()[1]
        datagram.bind((HERE, port))
        return port


def levels(found: list[Finding]) -> list[Level]:
    return [one.level for one in found]


@pytest.mark.anyio
async def test_all_three_arrive() -> None:
    said = list[str]()
    ready = asyncio.Event()

    def say(text: str) -> None:
        said.append(text)
        ready.set()

    ports = needed(free_port(), free_port())
    serving = asyncio.create_task(Listening([HERE], say).serve(ports, 20))
    await ready.wait()
    found = await probe(HERE, ports, 5)
    assert [one.what for one in found] == [f"{port} of {HERE} arrives" for port in ports]
    assert levels(await serving) == [Level.OK] * 3
    assert said[0].startswith(f"listening on {HERE}: tcp {ports[0].number} (API), tcp ")
    assert sorted(said[1:]) == sorted(f"{port} is reached from {HERE}" for port in ports)


@pytest.mark.anyio
async def test_nobody_knocks() -> None:
    ports = needed(free_port(), free_port())
    found = await Listening([HERE], lambda _: None).serve(ports, 0)
    assert [one.what for one in found] == [f"nothing came to {port}" for port in ports]
    assert all(one.level is Level.PROBLEM and one.remedy for one in found)


@pytest.mark.anyio
async def test_nobody_listens() -> None:
    found = await probe(HERE, needed(free_port(), free_port()), 0.6)
    assert levels(found) == [Level.PROBLEM] * 3
    assert [re.sub(r"\d+ \(", "N (", one.what).partition(f" of {HERE} does not arrive")[0] for one in found] == [
        "tcp N (API)",
        "tcp N (gossip)",
        "udp N (gossip)",
    ]


@pytest.mark.anyio
async def test_something_else_listens() -> None:
    """As a node does: it takes the connection, and echoes nothing."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 \r\n\r\n")
        writer.close()

    server = await asyncio.start_server(answer, HERE, 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        (api, *_) = await probe(HERE, needed(port, free_port()), 1)
    assert api.level is Level.OK
    assert "something else listens there" in api.what


@pytest.mark.anyio
async def test_strangers_are_not_echoed() -> None:
    ready = asyncio.Event()
    ports = needed(free_port(), free_port())
    serving = asyncio.create_task(Listening([HERE], lambda _: ready.set()).serve(ports, 20))
    await ready.wait()
    reader, writer = await asyncio.open_connection(HERE, ports[0].number)
    writer.write(b"hello\n")
    assert await reader.read() == b""
    writer.close()
    with socket.socket(type=socket.SOCK_DGRAM) as one:
        one.setblocking(False)
        one.connect((HERE, ports[2].number))
        one.send(b"hello")
        one.send(MARK + b"x" * LONGEST)
        one.send(MARK + b"mine")
        async with asyncio.timeout(20):
            assert await asyncio.get_running_loop().sock_recv(one, 1000) == MARK + b"mine"
    await probe(HERE, ports, 5)
    await serving


@pytest.mark.anyio
async def test_a_port_that_is_taken() -> None:
    with socket.socket() as holder:
        holder.bind((HERE, 0))
        holder.listen()
        ports = needed(holder.getsockname()[1], free_port())
        with pytest.raises(ConfigError, match=r"cannot listen on 127\.0\.0\.1 tcp") as caught:
            await Listening([HERE], lambda _: None).serve(ports, 1)
    assert "stop it" in caught.value.remedy


def command(folder: Path, *words: str) -> list[str]:
    program = str(Path(sys.executable).with_name("viiwork"))
    return [program, "doctor", "ports", *words, "--json", "--config", str(folder / "viiwork.yaml")]


def test_the_commands(tmp_path: Path) -> None:
    api, gossip = free_port(), free_port()
    mesh = {"network": "seeds", "advertise": HERE, "bind_port": gossip, "seeds": [], "open": True}
    config = {"node": {"name": "a", "state_dir": str(tmp_path)}, "api": {"port": api}, "mesh": mesh}
    (tmp_path / "viiwork.yaml").write_text(json.dumps(config))
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "VIIWORK_PLUGINS": ""}
    serve = command(tmp_path, "serve", "--seconds", "60")
    with subprocess.Popen(serve, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as serving:
        try:
            assert serving.stderr is not None
            assert serving.stderr.readline() == (
                f"listening on {HERE}: tcp {api} (API), tcp {gossip} (gossip), udp {gossip} (gossip)\n"
            )
            knocked = subprocess.run(
                command(tmp_path, "probe", HERE), env=env, capture_output=True, text=True, check=False
            )
            told, _ = serving.communicate(timeout=60)
        finally:
            serving.kill()
    assert (knocked.returncode, serving.returncode) == (0, 0), knocked.stdout + told
    assert [one["level"] for one in json.loads(knocked.stdout) + json.loads(told)] == ["ok"] * 6

    again = subprocess.run(
        command(tmp_path, "probe", HERE, "--wait", "0.5"), env=env, capture_output=True, text=True, check=False
    )
    assert again.returncode == 2
    assert {one["level"] for one in json.loads(again.stdout)} == {"problem"}


def test_serving_without_an_address(tmp_path: Path) -> None:
    (tmp_path / "viiwork.yaml").write_text(f"{{node: {{state_dir: '{tmp_path}'}}, mesh: {{network: none}}}}")
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "VIIWORK_PLUGINS": ""}
    done = subprocess.run(command(tmp_path, "serve"), env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "name one with --host" in done.stderr
