"""The double's HTTP/1.0: paths, who may ask, and the shapes of answers."""

from __future__ import annotations

import ipaddress
import json
import select
import socket
import socketserver
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

from viiwork_strata.testing.answer import Answer
from viiwork_strata.testing.machine import EngineDied, Machine, Slot
from viiwork_strata.testing.pages import page
from viiwork_strata.testing.refusal import Refusal
from viiwork_strata.testing.sessions import session

_CREATED = 1_790_000_000
_OPEN = ("/", "/health")


class DoubleServer(socketserver.ThreadingTCPServer):
    """Listens for one machine, a thread a request."""

    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 256

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        super().__init__((machine.settings.host, machine.settings.port), Handler)


class Handler(BaseHTTPRequestHandler):
    """HTTP/1.0: every answer ends with its connection."""

    server_version = "strata-double"
    server: DoubleServer

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        with self._refusing():
            self._check_host()
            if path not in _OPEN:
                self._check_key()
            self._reply(200, page(self.server.machine, path))

    def do_POST(self) -> None:
        with self._refusing():
            body = self._body()
            self._check_host()
            self._check_key()
            self._check_origin()
            self._post(body)

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except Refusal as refusal:
            self._reply(refusal.status, refusal.body)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _post(self, body: bytes) -> None:
        url, machine = urlsplit(self.path), self.server.machine
        if url.path == "/v1/chat/completions":
            self._chat(_object(body))
        elif url.path.startswith("/slots/"):
            self._check_json()
            action = parse_qs(url.query).get("action", [None])[0]
            name = _object(body).get("filename")
            self._reply(200, session(machine, url.path.removeprefix("/slots/"), action, name))
        elif url.path in ("/load", "/v1/load"):
            self._check_json()
            machine.load()
            self._reply(200, {"status": "loaded"})
        elif url.path in ("/unload", "/v1/unload"):
            self._check_json()
            self._reply(200, {"status": machine.unload()})
        else:
            raise Refusal(404, f"no such path {self.path}")

    def _chat(self, request: Mapping[str, object]) -> None:
        machine = self.server.machine
        with machine.turn() as slot:
            try:
                answer = machine.read(slot, request)
                if request.get("stream") is not True:
                    pieces = [piece for piece in machine.write(slot, answer, self._gone) if piece is not None]
                    self._reply(200, _completion(machine.settings.model, answer, pieces))
                    return
            except EngineDied as died:
                raise Refusal(503, f"{died}; the next request restarts it") from died
            self._stream(slot, answer, progress=request.get("return_progress") is True)

    def _stream(self, slot: Slot, answer: Answer, *, progress: bool) -> None:
        machine = self.server.machine
        self._head(200, "text/event-stream")
        self._event(_chunk(machine.settings.model, {"role": "assistant", "content": ""}))
        if progress:
            self._event({**_chunk(machine.settings.model, {}), "prompt_progress": answer.progress})
        # One comment for each chunk of the prompt that was read; the double reads a prompt in one.
        self.wfile.write(b": keep-alive\n\n")
        try:
            for number, piece in enumerate(machine.write(slot, answer, self._gone)):
                if piece is None:
                    self.wfile.write(b": keep-alive\n\n")
                    continue
                key = "reasoning_content" if number < answer.thinking else "content"
                self._event(_chunk(machine.settings.model, {key: piece}))
        except EngineDied as died:
            self._event(Refusal(503, f"{died}; the next request restarts it").body)
        else:
            last = _chunk(machine.settings.model, {}, answer.reported_finish)
            self._event({**last, "usage": answer.usage, "timings": answer.timings})
        # After a failure too: Strata's own way.
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, data: object) -> None:
        self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())

    def _gone(self) -> bool:
        """True when the client has closed its connection."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""

    def _body(self) -> bytes:
        data = b""
        for size in self._sizes():
            if len(data) + size > self.server.machine.settings.max_body:
                raise Refusal(413, "the body is too large")
            data += self.rfile.read(size)
        return data

    def _sizes(self) -> Iterator[int]:
        """The sizes of the body's pieces; each is read before the next is asked for."""
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            yield int(self.headers.get("Content-Length", 0))
            return
        while size := int(self.rfile.readline().split(b";")[0], 16):
            yield size
            self.rfile.readline()
        self.rfile.readline()

    def _check_key(self) -> None:
        keys = self.server.machine.settings.keys
        given = (self.headers.get("Authorization", "").removeprefix("Bearer "), self.headers.get("x-api-key", ""))
        if keys and not set(keys) & set(given):
            raise Refusal(401, "an API key is needed")

    def _check_host(self) -> None:
        """Without a key, only names that no foreign page can have."""
        settings = self.server.machine.settings
        name = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        if not settings.keys and not (_is_local(name) or name == settings.host):
            raise Refusal(403, f"this server is not known as {name}")

    def _check_origin(self) -> None:
        origin = self.headers.get("Origin")
        if origin is None:
            return
        if urlsplit(origin).netloc != self.headers.get("Host"):
            raise Refusal(403, f"requests from {origin} are not allowed")
        self._check_json()

    def _check_json(self) -> None:
        if self.headers.get_content_type() != "application/json":
            raise Refusal(415, "Content-Type must be application/json")

    def _reply(self, status: int, body: object) -> None:
        data = json.dumps(body).encode()
        self._head(status, "application/json", len(data))
        self.wfile.write(data)

    def _head(self, status: int, content_type: str, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.send_header("Connection", "close")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class calls it so
        """Requests are not logged."""


def _is_local(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _object(body: bytes) -> dict[str, object]:
    try:
        value = json.loads(body)
    except ValueError as error:
        raise Refusal(400, f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Refusal(400, "the body is not a JSON object")
    return value


def _chunk(model: str, delta: Mapping[str, object], finish: str | None = None) -> dict[str, object]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {"id": "chatcmpl-double", "object": "chat.completion.chunk", "created": _CREATED, "model": model}
    return {**head, "choices": [choice]}


def _completion(model: str, answer: Answer, pieces: list[str]) -> dict[str, object]:
    message: dict[str, object] = {"role": "assistant", "content": "".join(pieces[answer.thinking :]) or None}
    if answer.thinking:
        message["reasoning_content"] = "".join(pieces[: answer.thinking])
    choice = {"index": 0, "message": message, "finish_reason": answer.reported_finish}
    head = {"id": "chatcmpl-double", "object": "chat.completion", "created": _CREATED, "model": model}
    return {**head, "choices": [choice], "usage": answer.usage, "timings": answer.timings}
