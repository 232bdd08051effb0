"""A node that supervises a vLLM, from its configuration to a client's answer."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse, IncompleteRead
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

T = TypeVar("T")

VIIWORK = (sys.executable, "-c", "from viiwork_core.cli.main import main; main()")
CHAT = "/v1/chat/completions"


def until(holds: Callable[[], T], what: str, within: float = 60.0) -> T:
    """What `holds` returns once it is true."""
    deadline = time.monotonic() + within
    while not (found := holds()):
        assert time.monotonic() < deadline, f"not within {within:g} s: {what}"
        time.sleep(0.05)
    return found


@dataclass
class Node:
    """A running node."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path

    def ask(self, method: str, path: str, body: object = None) -> tuple[HTTPConnection, HTTPResponse]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        return connection, connection.getresponse()

    def get(self, path: str) -> Any:
        connection, answer = self.ask("GET", path)
        with closing(connection):
            return json.loads(answer.read())

    def backend(self) -> dict[str, Any]:
        """The only backend's entry of /v1/status; empty while the node does not answer."""
        assert self.process.poll() is None, self.log.read_text()
        with suppress(ConnectionError):
            (model,) = self.get("/v1/status")["models"]
            return dict(model["backends"][0])
        return {}

    def healthy(self) -> bool:
        return self.backend().get("status") == "healthy"

    def chat(self, text: str, **more: Any) -> tuple[int, bytes]:
        body = {"model": "tiny", "messages": [{"role": "user", "content": text}], "max_tokens": 8, **more}
        connection, answer = self.ask("POST", CHAT, body)
        with closing(connection):
            try:
                return answer.status, answer.read()
            except IncompleteRead as cut:
                return answer.status, cut.partial


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


@contextmanager
def node(folder: Path, model: Path, **more: Any) -> Iterator[Node]:
    """A node with one model, on its way up."""
    entry = {"name": "tiny", "engine": "vllm", "path": str(model), "context": 4096, "parallel": 2, "gpus": [0]}
    config: dict[str, Any] = {
        "node": {"name": "one", "state_dir": str(folder / "state")},
        "api": {"port": free_port()},
        "mesh": {"network": "none"},
        "health": {"interval": "0.2s", "max_failures": 2},
        "models": [{**entry, **more}],
    }
    (folder / "viiwork.yaml").write_text(json.dumps(config))  # JSON is YAML
    command = [*VIIWORK, "serve", "--config", str(folder / "viiwork.yaml")]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, env={**os.environ, "HF_TOKEN": "no"})
    try:
        yield Node(process, config["api"]["port"], folder / "log")
    finally:
        process.terminate()
        try:
            process.wait(30)
        finally:
            process.kill()
            process.wait()


@pytest.mark.usefixtures("vllm")
def test_from_the_configuration_to_the_answer(tmp_path: Path, model: Path) -> None:
    with node(tmp_path, model) as one:
        until(one.healthy, "the backend is healthy")
        process = psutil.Process(one.backend()["pid"])
        assert process.cmdline()[2:7] == ["serve", str(model), "--served-model-name", "tiny", "--host"]
        assert {"HF_TOKEN", "VLLM_API_KEY"}.isdisjoint(process.environ())

        status, body = one.chat("hello")
        assert status == 200
        assert json.loads(body)["choices"][0]["message"]["content"].startswith("the river")
        status, body = one.chat("hello", stream=True)
        assert (status, body.count(b"data: [DONE]")) == (200, 1)
        assert b'"usage"' not in body, "the core asked for it, and took it out again"
        long = "one two three four five six seven eight " * 8
        told = [json.loads(one.chat(long)[1])["usage"] for _ in range(2)]
        assert [usage["prompt_tokens_details"]["cached_tokens"] for usage in told] == [0, 48]
        assert one.chat("word " * 5000)[0] == 400
    assert not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.usefixtures("vllm")
def test_an_engine_that_dies_is_an_error_for_the_client_and_started_anew(tmp_path: Path, model: Path) -> None:
    with node(tmp_path, model) as one:
        until(one.healthy, "the backend is healthy")
        pid = one.backend()["pid"]
        status, body = one.chat("please die now", stream=True)
        assert status == 503 or b'"error"' in body
        assert b"[DONE]" not in body
        until(lambda: one.backend().get("pid") not in {None, pid} and one.healthy(), "another vLLM serves")
        assert one.chat("hello")[0] == 200


@pytest.mark.usefixtures("vllm")
def test_slots_come_free_after_clients_that_left(tmp_path: Path, model: Path) -> None:
    """Though the gauges of vLLM go on telling of their requests."""
    with node(tmp_path, model, env={"FAKE_VLLM_STEP_S": "0.05"}) as one:
        until(one.healthy, "the backend is healthy")
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "stream": True, "max_tokens": 2000}
        clients = [one.ask("POST", CHAT, body) for _ in range(2)]
        for _, answer in clients:
            while b'"content": "the ' not in answer.readline():
                pass
        until(lambda: one.get("/v1/status")["models"][0]["busy"] == 2, "both run")
        for connection, answer in clients:
            answer.close()
            connection.close()
        until(lambda: set(one.backend()["slot_states"]) == {"free"}, "all slots are free")
        assert one.chat("hello")[0] == 200


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"args": ["--port", "9000"]}, "--port is viiwork's to decide"),
        ({"vllm": {"exe": "/nowhere/vllm"}}, "there is no executable '/nowhere/vllm'"),
    ],
)
@pytest.mark.usefixtures("vllm")
def test_what_cannot_be_started_is_told(tmp_path: Path, model: Path, more: dict[str, Any], words: str) -> None:
    with node(tmp_path, model, **more) as one:
        until(lambda: words in str(one.backend().get("reason")), "the reason is told")
        one.process.send_signal(signal.SIGTERM)
        assert one.process.wait(30) == 0
