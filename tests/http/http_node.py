"""A node as a user starts it, `viiwork serve`, with scripted and fake engines, and clients that see every byte."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, TypeVar

import h11
import psutil

CHAT = "/v1/chat/completions"
HERE = Path(__file__).parent
QUEUE_MAX = 2
"""Of the shared node."""

SECRET = base64.b64encode(bytes(range(32))).decode()

T = TypeVar("T")


def until(holds: Callable[[], T], what: str, within: float = 20.0) -> T:
    """What `holds` returns once it is true."""
    deadline = time.monotonic() + within
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within:g} s: {what}")
        time.sleep(0.01)
    return found


async def soon(holds: Callable[[], T], what: str, within: float = 10.0) -> T:
    """The same, while other tasks of the test go on."""
    return await asyncio.to_thread(until, holds, what, within)


def fetch(host: str, port: int, path: str, method: str = "GET", body: str | None = None) -> Any:
    """The JSON that a server answers."""
    connection = HTTPConnection(host, port, timeout=10)
    try:
        connection.request(method, path, body)
        return json.loads(connection.getresponse().read())
    finally:
        connection.close()


def plugin_path(folder: Path) -> str:
    """A PYTHONPATH on which the plugins of these tests are installed, as a stranger's would be."""
    info = folder / "strangers-1.0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers\nVersion: 1.0\n")
    names = (
        "scripted = scripted_plugin",
        "rude = rude_plugin",
        "rude_policy = rude_policy",
        "telling = telling_plugin",
        "fake = viiwork_core.testing.fake_plugin",
    )
    lines = ("[viiwork]", *names, "")
    (info / "entry_points.txt").write_text("\n".join(lines))
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(filter(None, (str(folder), str(HERE), *inherited)))


class EngineEnd:
    """A backend's engine, asked behind the node's back."""

    def __init__(self, port: int) -> None:
        self.port = port

    def _ask(self, method: str, path: str, body: Any = None) -> Any:
        return fetch("127.0.0.1", self.port, path, method, json.dumps(body))

    def seen(self) -> list[dict[str, Any]]:
        """What a scripted engine was asked: path, headers, body (base64), at, from (port), left, done. Oldest first."""
        return list(self._ask("GET", "/seen"))

    def open(self, gate: str) -> None:
        """Let a script go on."""
        self._ask("POST", f"/open/{gate}", {})

    def tell(self, load: Any) -> None:
        """What it is to say of its load; None: the truth again."""
        self._ask("POST", "/load", load)

    def most_at_once(self) -> int:
        """The most requests that a scripted engine ever had at a time."""
        return int(self._ask("GET", "/most"))

    def refuse(self, *statuses: int) -> None:
        """What it is to answer to the next requests."""
        self._ask("POST", "/refuse", list(statuses))

    def mute(self, number: int) -> None:
        """It is to say nothing to so many of the next requests."""
        self._ask("POST", "/mute", number)

    def probes(self) -> int:
        """How often a scripted engine was asked whether it is ready."""
        return int(self._ask("GET", "/probes"))

    def reports(self) -> int:
        """How often a scripted engine was asked for its load."""
        return int(self._ask("GET", "/reports"))

    def fake_state(self) -> Any:
        return self._ask("GET", "/fake/state")

    def fake_requests(self) -> Any:
        return self._ask("GET", "/fake/requests")


class Node:
    """A running node."""

    def __init__(self, name: str, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.name, self.folder, self.process = name, folder, process
        self.host, self.port = "127.0.0.1", 0

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")

    def events(self, event: str, **fields: object) -> list[dict[str, Any]]:
        """The lines of its log that say `event`, with these fields."""
        lines = self.log().splitlines(keepends=True)
        told = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]
        return [line for line in told if line["event"] == event and fields.items() <= line.items()]

    def heard(self, event: str, **fields: object) -> dict[str, Any]:
        """The first such line, waited for."""
        return until(lambda: self.events(event, **fields), f"{self.name} logs {event!r} with {fields}")[0]

    def get(self, path: str) -> Any:
        return fetch(self.host, self.port, path)

    def model(self, name: str) -> dict[str, Any]:
        """The model's entry of /v1/status."""
        found: dict[str, Any] = next(one for one in self.get("/v1/status")["models"] if one["name"] == name)
        return found

    def slots(self, model: str) -> list[str]:
        """The states of all slots of a model."""
        return [state for backend in self.model(model)["backends"] for state in backend["slot_states"]]

    def idle(self, model: str) -> bool:
        """Whether all slots are free and nobody waits."""
        entry = self.model(model)
        return entry["queued"] == 0 and entry["busy"] == 0 and set(self.slots(model)) == {"free"}

    def engine(self, model: str, index: int = 0) -> EngineEnd:
        process = psutil.Process(self.model(model)["backends"][index]["pid"])
        listening = [one for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
        return EngineEnd(listening[0].laddr.port)

    def ready(self) -> bool:
        """Whether every backend is healthy."""
        if not self.answers():
            return False
        models = self.get("/v1/status")["models"]
        return all({one["status"] for one in model["backends"]} == {"healthy"} for model in models)

    def answers(self) -> bool:
        """Whether its API is there."""
        if self.process.poll() is not None:
            raise AssertionError(self.log())
        try:
            self.get("/health")
        except ConnectionRefusedError:
            return False  # it says where it will listen before it does
        return True


@contextmanager
def started(
    name: str,
    folder: Path,
    config: Mapping[str, Any],
    *,
    plugins: str = "scripted,fake",
    healthy: bool = True,
    environ: Mapping[str, str] | None = None,
) -> Iterator[Node]:
    """A node all of whose backends are healthy, or that answers (not `healthy`). It is ended with the block.

    `plugins`: entry points that it may load; `environ`: more of its environment. The folder may be that of a node that
    ran before.
    """
    folder.mkdir(parents=True, exist_ok=True)
    whole = {
        "node": {"name": name, "state_dir": str(folder / "state")},
        "api": {"port": 0},
        "mesh": {"network": "none"},
        **config,
    }
    (folder / "viiwork.yaml").write_text(json.dumps(whole))  # JSON is YAML
    environ = {
        **(environ or {}),
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "PYTHONPATH": plugin_path(folder / "site"),
        "VIIWORK_PLUGINS": plugins,
        "VIIWORK_MESH_SECRET": (environ or {}).get("VIIWORK_MESH_SECRET", SECRET),
    }
    command: list[str | Path] = [
        Path(sys.executable).with_name("viiwork"),
        "serve",
        "--log-json",
        "--config",
        folder / "viiwork.yaml",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log, env=environ)
    node = Node(name, folder, process)
    try:
        api = until(lambda: process.poll() is not None or node.events("starting"), f"{name} starts")
        assert not isinstance(api, bool), node.log()
        node.host, _, port = api[0]["api"].removeprefix("http://").rpartition(":")
        node.port = int(port)
        until(node.ready if healthy else node.answers, f"{name} answers, and its backends are healthy")
        yield node
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait()


def model(name: str, engine: str = "scripted", **more: Any) -> dict[str, Any]:
    """A model's entry of the configuration: two slots, unless `more` says otherwise."""
    return {"name": name, "engine": engine, "context": 4096, "parallel": 2, **more}


# What a client sends


def script(*steps: Sequence[Any]) -> list[list[Any]]:
    """Steps of the scripted engine; bytes are written as base64."""
    return [[base64.b64encode(one).decode() if isinstance(one, bytes) else one for one in step] for step in steps]


def streamed(*events: bytes, end: bool = True) -> list[list[Any]]:
    """A stream of these chunks."""
    last = [("end",)] if end else [("cut",)]
    return script(("stream",), *(("chunk", event) for event in events), *last)


def chat(name: str, steps: list[list[Any]] | None = None, **more: Any) -> bytes:
    """A request's body."""
    body = {"model": name, "messages": [{"role": "user", "content": "hello"}], **more}
    return json.dumps(body if steps is None else {**body, "script": steps}).encode()


# A client that sees every byte


@dataclass
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    """Names in lower case."""

    pieces: list[bytes] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    """When each piece came, monotonic."""

    broken: bool = False
    """The connection ended before the answer did."""

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def error(self) -> dict[str, str]:
        """The error object, in OpenAI's shape."""
        found: dict[str, str] = json.loads(self.body)["error"]
        assert found.keys() == {"message", "type", "code", "src"}, found
        return found


class Client:
    """One connection to a node."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._http = h11.Connection(h11.CLIENT)

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.writer.write(data)
        await self.writer.drain()

    async def ask(
        self, body: bytes, *, path: str = CHAT, method: str = "POST", headers: Sequence[tuple[str, str]] = ()
    ) -> None:
        """Send a whole request."""
        fields = [("Host", "node"), ("Content-Type", "application/json"), *headers]
        fields.append(("Content-Length", str(len(body))))
        head = f"{method} {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in fields) + "\r\n"
        await self.send(head.encode("latin-1") + body)

    async def answer(self, method: str = "POST") -> Answer:
        """The status and headers of the next answer; `read` fills in its body."""
        if self._http.our_state is h11.DONE:
            self._http.start_next_cycle()
        # The bytes went out without h11, which must know that there was a request.
        self._http.send(h11.Request(method=method, target="/", headers=[("Host", "node")]))
        self._http.send(h11.EndOfMessage())
        while not isinstance(event := await self._event(), h11.Response):
            assert event is None or isinstance(event, h11.InformationalResponse), event
            assert event is not None, "the connection ended before an answer"
        headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
        return Answer(event.status_code, headers)

    async def read(self, answer: Answer, pieces: int | None = None) -> Answer:
        """Read the body to its end, or so many pieces of it."""
        while pieces is None or len(answer.pieces) < pieces:
            event = await self._event()
            if isinstance(event, h11.Data):
                answer.pieces.append(bytes(event.data))
                answer.times.append(time.monotonic())
            else:
                answer.broken = not isinstance(event, h11.EndOfMessage)
                return answer
        return answer

    async def _event(self) -> Any:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            try:
                data = await self.reader.read(1 << 16)
                self._http.receive_data(data)
                if not data and self._http.their_state is h11.SEND_BODY:
                    return self._http.next_event()
            except (ConnectionError, h11.RemoteProtocolError):
                return None
            if not data:
                return None
        return event

    def leave(self) -> float:
        """Close the connection; returns when, monotonic."""
        self.writer.close()
        return time.monotonic()


@asynccontextmanager
async def connected(node: Node) -> AsyncIterator[Client]:
    """A connection to the node's API."""
    reader, writer = await asyncio.open_connection(node.host, node.port)
    try:
        yield Client(reader, writer)
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def ask(
    node: Node, body: bytes, *, path: str = CHAT, method: str = "POST", headers: Sequence[tuple[str, str]] = ()
) -> Answer:
    """One request on a connection of its own, and its whole answer."""
    async with asyncio.timeout(30), connected(node) as client:
        await client.ask(body, path=path, method=method, headers=headers)
        return await client.read(await client.answer(method))
