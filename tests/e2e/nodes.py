"""Nodes as a user starts them: `viiwork serve` in a process of its own, spoken to over HTTP."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode, urlsplit

import psutil
from hosts import Host

from viiwork_core.kvshare.arrivals import read_header
from viiwork_core.testing.tiny_model import WORDS

CHAT = "/v1/chat/completions"
MODEL = "tiny"
SECRET = "VIIWORK_MESH_SECRET"
ENDLESS = 12_000
"""Tokens that take longer to write than any test here, and fit into a slot."""

T = TypeVar("T")
Message = dict[str, str]


def until(holds: Callable[[], T | None], what: str, within: float = 20.0) -> T:
    """What `holds` returns once it is true."""
    deadline = time.monotonic() + within
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within:g} s: {what}")
        time.sleep(0.02)
    return found


def prose(tokens: int, seed: int) -> str:
    """About so many tokens that no other seed's text begins with."""
    return " ".join(random.Random(seed).choices(WORDS, k=tokens))


@dataclass(frozen=True)
class Reply:
    """An answer over HTTP."""

    status: int
    headers: Mapping[str, str]
    """Names in lowercase."""

    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, str]:
        """The error object, in OpenAI's shape."""
        assert self.json.keys() == {"error"}, self.body
        found: dict[str, str] = self.json["error"]
        assert {"message", "type", "code", "src"} <= found.keys(), found
        return found

    @property
    def text(self) -> str:
        """What the model wrote."""
        assert self.status == 200, self.body
        return str(self.json["choices"][0]["message"]["content"])

    @property
    def warmth(self) -> float:
        """The share of the prompt that was not read again."""
        usage = self.json["usage"]
        return float(usage["prompt_tokens_details"]["cached_tokens"] / usage["prompt_tokens"])


class _Connection(HTTPConnection):
    """From a host of the test."""

    def __init__(self, host: Host, address: str, port: int) -> None:
        super().__init__(address, port, timeout=60)
        self._from = host

    def connect(self) -> None:
        self.sock = self._from.connect(self.host, self.port)
        self.sock.settimeout(60)


class Node:
    """A running node."""

    def __init__(self, host: Host, name: str, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.host, self.name, self.folder = host, name, folder
        self.process = process
        self.port = 0
        self.secret = ""
        """Of its mesh."""

    # Its process

    def events(self, event: str, **fields: object) -> list[dict[str, Any]]:
        """The lines of its log that say `event`, with these fields."""
        lines = (self.folder / "log").read_text(errors="replace").splitlines(keepends=True)
        told = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
        return [line for line in told if line["event"] == event and fields.items() <= line.items()]

    def heard(self, event: str, **fields: object) -> list[dict[str, Any]]:
        """The same, waited for."""
        return until(lambda: self.events(event, **fields), f"{self.name} logs {event!r} with {fields}\n{self.log()}")

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def begun(self) -> str:
        """Wait for the address of its API."""

        def api() -> str | None:
            assert self.process.poll() is None, self.log()
            return next((line["api"] for line in self.events("starting")), None)

        return until(api, f"{self.name} says where its API is")

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)

    def engine(self) -> psutil.Process:
        """The process of its llama-server."""
        (model,) = self.get("/v1/status").json["models"]
        return psutil.Process(model["backends"][0]["pid"])

    def end(self, within: float = 15.0) -> int:
        """SIGTERM, and its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(within)

    # Its API

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Reply:
        with _closing(_Connection(self.host, self.host.address, self.port)) as connection:
            connection.request(method, path, body, dict(headers or {}))
            response = connection.getresponse()
            names = {name.lower(): value for name, value in response.getheaders()}
            return Reply(response.status, names, response.read())

    def get(self, path: str) -> Reply:
        return self.request("GET", path)

    def healthy(self) -> bool:
        try:
            return self.get("/health").status == 200
        except ConnectionRefusedError:
            return False  # it says where it will listen before it does

    def chat(
        self, messages: list[Message], *, host: str | None = None, session: str | None = None, **more: object
    ) -> Reply:
        """One turn, entered here; `host`: the node that is to serve it, `more`: fields of the body."""
        headers = {"X-Session-Affinity": session} if session else {}
        return self.request("POST", _target(host), chat_body(messages, **more), headers)

    @contextmanager
    def held(self, host: str | None = None) -> Iterator[HTTPResponse]:
        """A slot taken: an answer that is being streamed, and read no further than its first bytes."""
        with _closing(_Connection(self.host, self.host.address, self.port)) as connection:
            body = chat_body([user("go on")], max_tokens=ENDLESS, ignore_eos=True, stream=True)
            connection.request("POST", _target(host), body)
            response = connection.getresponse()
            assert response.status == 200, response.read()
            assert response.read1(1)
            yield response

    def busy(self) -> int:
        """Taken slots, by its own book."""
        (model,) = self.get("/v1/status").json["models"]
        return int(model["busy"])

    def idle(self) -> bool:
        return self.busy() == 0

    def queued(self) -> int:
        (model,) = self.get("/v1/status").json["models"]
        return int(model["queued"])

    def members(self) -> set[str]:
        return {member["node"] for member in self.get("/v1/status").json["members"]}

    # Its disk

    @property
    def store(self) -> Path:
        """The folder of caches that it holds for others."""
        return self.folder / "state" / "kv" / "replicas"

    def replicas(self) -> dict[str, tuple[int, Path]]:
        """Turn and file of each session's cache there."""
        found = {}
        for file in self.store.glob("*.json"):
            with suppress(FileNotFoundError):  # a newer turn has just taken its place
                header = read_header(file)
                found[header.session] = (header.turn, file.with_suffix(".kv"))
        return found


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def chat_body(messages: list[Message], **more: object) -> bytes:
    return json.dumps({"model": MODEL, "messages": messages, "max_tokens": 24, "temperature": 0, **more}).encode()


def _target(host: str | None) -> str:
    return f"{CHAT}?{urlencode({'host': host})}" if host else CHAT


@contextmanager
def _closing(connection: HTTPConnection) -> Iterator[HTTPConnection]:
    try:
        yield connection
    finally:
        if connection.sock is not None:
            with suppress(OSError):  # the node may be gone
                connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()


@contextmanager
def started(
    host: Host, name: str, folder: Path, config: Mapping[str, Any], secret: str, **environ: str
) -> Iterator[Node]:
    """A node that has said where it listens. It is ended with the block, whatever state it is in."""
    folder.mkdir()
    (folder / "viiwork.yaml").write_text(json.dumps(config))  # JSON is YAML
    program = str(Path(sys.executable).with_name("viiwork"))
    command = [program, "serve", "--config", str(folder / "viiwork.yaml"), "--log-json", "--log-level", "debug"]
    environ = {"PATH": os.environ["PATH"], "HOME": str(folder), SECRET: secret, **environ}
    with (folder / "log").open("wb") as log, host.inside():
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, env=environ)
    node = Node(host, name, folder, process)
    try:
        node.secret = secret
        node.port = urlsplit(node.begun()).port or 0
        yield node
    finally:
        _finish(process)


def _finish(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(15)
        finally:
            process.kill()
            process.wait()
