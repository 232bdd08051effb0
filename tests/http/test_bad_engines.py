"""What cannot be started is told in /v1/status, in words that name the key and the remedy, and harms nobody else."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from http_node import SECRET, Node, ask, chat, model, started, until

SHARD = "m-{:05}-of-00003.gguf"
LINES = 30
"""What the program says that exits at once; the last 20 are kept."""

TALKER = f'#!/bin/sh\nfor n in $(seq {LINES}); do echo "complaint $n"; done\nexit 3\n'
ILLEGAL = "#!/bin/sh\nkill -ILL $$\n"
GGUF = b"GGUF" + struct.pack("<IQQQ20sIQ5s", 3, 0, 1, 20, b"general.architecture", 8, 5, b"llama")
GARBAGE = b"\x7fELF this is none"


def program(path: Path, content: str | bytes) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    path.chmod(0o755)
    return str(path)


def llama(name: str, path: Path | None, **options: Any) -> dict[str, Any]:
    """A model of llama-server; `options` are its block's."""
    given = {} if path is None else {"path": str(path)}
    return model(name, "llamacpp", llamacpp=options, **given)


def entries(folder: Path) -> list[dict[str, Any]]:
    """One good model, and one for each way in which one can be bad."""
    whole = folder / "whole.gguf"
    whole.write_bytes(GGUF)
    (folder / "empty.gguf").touch()
    for number in (1, 3):
        (folder / SHARD.format(number)).touch()
    talker = program(folder / "talker", TALKER)
    garbage = program(folder / "garbage", GARBAGE)
    plain = folder / "plain"
    plain.write_text("no program")
    return [
        model("good", "fake"),
        llama("nopath", None, binary=talker),
        llama("gone", folder / "gone.gguf", binary=talker),
        llama("shards", folder / SHARD.format(1), binary=talker),
        llama("later", folder / SHARD.format(2), binary=talker),
        llama("folder", folder, binary=talker),
        llama("nobinary", whole, binary=str(folder / "nobody")),
        llama("noprogram", whole, binary=str(plain)),
        llama("garbage", whole, binary=garbage),
        llama("exits", whole, binary=talker),
        llama("illegal", whole, binary=program(folder / "illegal", ILLEGAL)),
        llama("damaged", folder / "empty.gguf", binary=talker),
        model("porter", "llamacpp", path=str(whole), args=["--port", "9"], llamacpp={"binary": talker}),
        model("quits", "fake", fake={"exit_at_start": True}),
        model("crashes", "fake", fake={"crash_after": 0.0, "load_seconds": 60}),
    ]


@pytest.fixture(scope="module")
def bad_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("bad")
    models = entries(folder)
    config = {"health": {"max_respawns": 0}, "routing": {"queue_timeout": "0.5s"}, "models": models}
    with started("one", folder / "one", config, plugins="fake,llamacpp", healthy=False) as node:
        until(lambda: all(state(node, one["name"]) in ("dead", "healthy") for one in models), "all is told")
        yield node


def state(node: Node, name: str) -> str:
    backends = node.model(name)["backends"]
    return str(backends[0]["status"]) if backends else "unknown"


def reason(node: Node, name: str) -> str:
    (backend,) = node.model(name)["backends"]
    assert (backend["status"], "pid" in backend) == ("dead", False)
    return str(backend["reason"])


@pytest.mark.parametrize(
    ("name", "words", "remedy"),
    [
        ("nopath", "models[nopath].path: missing", "write the path of the model's .gguf file"),
        ("gone", "gone.gguf is not a file", "correct the path"),
        ("shards", f"lacks {SHARD.format(2)}", "fetch the model's file, all parts of it"),
        ("later", f"{SHARD.format(2)} is not the model's first part", f"write {SHARD.format(1)}"),
        ("folder", "is a directory", "write the .gguf file inside it"),
        ("nobinary", "nobody' is not an executable file", "write the path of a llama-server binary"),
        ("noprogram", "plain' is not an executable file", "write the path of a llama-server binary"),
        ("garbage", "Exec format error; it is no program for this machine", "that was built for it"),
        ("illegal", "ended by SIGILL, illegal instruction", "built for another CPU"),
        ("damaged", "models[damaged].path: empty.gguf cannot be loaded", "fetch it again"),
        ("porter", "models[porter].args: --port is viiwork's to decide", "leave it out"),
    ],
)
def test_the_reason_names_what_is_wrong(bad_node: Node, name: str, words: str, remedy: str) -> None:
    told = reason(bad_node, name)
    assert words in told
    assert remedy in told
    assert "Traceback" not in told


def test_a_program_that_exits_at_once_is_told_with_its_last_twenty_lines(bad_node: Node) -> None:
    head, *lines = reason(bad_node, "exits").splitlines()
    assert head == "exited with code 3; its last lines:"
    assert lines == [f"complaint {number}" for number in range(LINES - 19, LINES + 1)]


def test_a_program_that_says_why_it_exits_is_quoted(bad_node: Node) -> None:
    assert reason(bad_node, "quits") == "exited with code 1; its last lines:\nfake engine: told to exit at start"


def test_a_program_that_crashes_while_it_loads(bad_node: Node) -> None:
    assert "exited with code 70" in reason(bad_node, "crashes")


def test_everything_else_serves(bad_node: Node) -> None:
    answer = asyncio.run(ask(bad_node, chat("good")))
    assert answer.status == 200
    assert bad_node.get("/health")["status"] == "ok"
    assert "Traceback" not in bad_node.log()


def test_a_model_that_is_dead_is_an_honest_error(bad_node: Node) -> None:
    answer = asyncio.run(ask(bad_node, chat("gone")))
    assert (answer.status, answer.error["code"]) == (503, "model_not_served")
    assert 'model "gone" has failed on ' in answer.error["message"]
    assert answer.headers["retry-after"] == "5"


def test_nothing_of_them_is_left(bad_node: Node) -> None:
    running = psutil.Process(bad_node.process.pid).children(recursive=True)
    assert not [one for one in running if "talker" in " ".join(one.cmdline())]


def test_a_port_that_is_taken_is_a_sentence(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        ended = serve(tmp_path, {"api": {"port": port}})
    assert ended.returncode == 1
    assert f"api.port: cannot listen on 127.0.0.1 port {port}: Address already in use" in ended.stderr
    assert "choose another api.port (0 takes a free one)" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "state" / "node.json").exists()


def serve(folder: Path, config: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    """A node that is expected to end by itself."""
    whole = {"node": {"name": "one", "state_dir": str(folder / "state")}, "mesh": {"network": "none"}, **config}
    file = folder / "viiwork.yaml"
    file.write_text(json.dumps(whole))
    command: list[str | Path] = [Path(sys.executable).with_name("viiwork"), "serve", "--config", file]
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "VIIWORK_MESH_SECRET": SECRET, "VIIWORK_PLUGINS": ""}
    return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30, check=False)
