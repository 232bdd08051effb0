"""Any ASGI server runs the application. Here: uvicorn, and Granian of the extra `fast`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from http_node import HERE, Node, ask, chat, connected, model, plugin_path, script, soon, streamed, until

from viiwork_core.errors import ConfigError
from viiwork_core.node.asgi import app_from_config
from viiwork_core.web import Application, create_app

PROGRAM = HERE / "asgi_program.py"
SERVERS = pytest.mark.parametrize("server", ["uvicorn", "granian"])


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        port: int = one.getsockname()[1]
        return port


@contextmanager
def served(folder: Path, server: str, **config: Any) -> Iterator[Node]:
    """A node under a server, stopped by the test or with the block."""
    port = free_port()
    whole = {
        "node": {"name": "guest", "state_dir": str(folder / "state")},
        "api": {"port": port},
        "mesh": {"network": "none"},
        **config,
    }
    (folder / "viiwork.yaml").write_text(json.dumps(whole))
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": plugin_path(folder / "site"),
        "VIIWORK_PLUGINS": "fake,scripted",
        "CONFIG": str(folder / "viiwork.yaml"),
    }
    command = [sys.executable, PROGRAM, str(port), server]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environ)
    node = Node("guest", folder, process)
    node.port = port
    try:
        until(node.ready, "its backends are healthy")
        yield node
    finally:
        # A server may have the node in a process of its own, which would outlive it.
        below = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait()
            for one in below:
                with suppress(psutil.NoSuchProcess):
                    one.kill()


@SERVERS
def test_a_node_serves_and_leaves_no_child(tmp_path: Path, server: str) -> None:
    with served(tmp_path, server, models=[model("tiny", "fake")]) as node:
        children = psutil.Process(node.process.pid).children(recursive=True)
        assert len(children) >= 2, "an engine, and what ends it when the node is killed"
        identity = json.loads((tmp_path / "state" / "node.json").read_text())
        assert identity["api"] == f"http://127.0.0.1:{node.port}"

        async def scene() -> None:
            plain = await ask(node, chat("tiny"))
            assert plain.status == 200
            assert json.loads(plain.body)["choices"][0]["message"]["content"]
            stream = await ask(node, chat("tiny", stream=True))
            assert (stream.status, stream.broken) == (200, False)
            assert stream.body.endswith(b"data: [DONE]\n\n")
            assert (await ask(node, chat("other"))).error["code"] == "not_found"
            async with asyncio.timeout(10), connected(node) as client:
                await client.ask(b"", path="/v1/activity/stream", method="GET")
                answer = await client.read(await client.answer("GET"), 1)
                assert b"tiny \xe2\x86\x92 tiny/0 done" in answer.body

        asyncio.run(scene())
        node.process.send_signal(signal.SIGTERM)
        until(lambda: node.process.poll() is not None, "it stops")
        assert "Traceback" not in node.log()
        assert not (tmp_path / "state" / "node.json").exists()
        assert psutil.wait_procs(children, timeout=5)[1] == []


@SERVERS
@pytest.mark.parametrize(("began", "stream"), [(False, True), (True, True), (False, False), (True, False)])
def test_a_client_that_leaves_ends_the_work(tmp_path: Path, server: str, began: bool, stream: bool) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
    start = [("stream",), ("chunk", b"data: a\n\n")] if stream else [("raw", head)]
    steps = script(*(start if began else []), ("hold",))
    with served(tmp_path, server, models=[model("scripted")]) as node:

        async def scene() -> None:
            async with asyncio.timeout(20), connected(node) as client:
                await client.ask(chat("scripted", steps, stream=stream))
                await soon(lambda: node.engine("scripted").seen(), "the engine has it")
                if began:
                    await client.read(await client.answer(), 1)
                client.leave()
                await soon(lambda: node.engine("scripted").seen()[0]["left"], "the engine sees it leave", 2)

        asyncio.run(scene())


@SERVERS
def test_a_cut_answer_is_broken(tmp_path: Path, server: str) -> None:
    with served(tmp_path, server, models=[model("scripted")]) as node:
        answer = asyncio.run(ask(node, chat("scripted", streamed(b"data: a\n\n", end=False), stream=True)))
        assert (answer.status, answer.body, answer.broken) == (200, b"data: a\n\n", True)


def test_a_port_that_only_viiwork_can_know_is_refused(tmp_path: Path) -> None:
    (tmp_path / "viiwork.yaml").write_text("mesh: {network: none}\napi: {port: 0}\n")
    with pytest.raises(ConfigError, match=r"^api\.port: is 0"):
        app_from_config(tmp_path / "viiwork.yaml")


def test_the_application_is_made_without_opening_anything(tmp_path: Path) -> None:
    (tmp_path / "viiwork.yaml").write_text(f"mesh: {{network: none}}\nnode: {{state_dir: {tmp_path / 'state'}}}\n")
    app = app_from_config(str(tmp_path / "viiwork.yaml"))
    assert isinstance(app, Application)
    assert app.surface is None
    assert not (tmp_path / "state").exists()
    assert create_app.__module__ == "viiwork_core.web.app"
