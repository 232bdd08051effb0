"""The double as a program: an HTTP/1.0 server with the interface of Strata's server about 0.1.42, thin.

    python -m viiwork_strata.testing.double --config FILE --port N [--slot-save-path DIR] [--gpu LIST]
        [--load-seconds S] [--token-seconds S]

While it loads its port is closed. It answers /health, /slots, /status, /v1/status, chat (plain and streamed), and the
save and restore of the live conversation. Not doubled: batch slots, replicas, thinking, parked conversations, API keys,
unload, and an engine process that dies.
"""

from __future__ import annotations

import json
import select
import signal
import socket
import socketserver
import sys
import time
from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit

from viiwork_strata.testing.machine import Answer, Machine
from viiwork_strata.testing.refusal import Refusal
from viiwork_strata.testing.settings import VERSION, Settings, parse

_CREATED = 1_790_000_000


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
        machine = self.server.machine
        match urlsplit(self.path).path:
            case "/health" | "/api/health":
                self._reply(200, _health(machine.settings))
            case "/slots":
                self._reply(200, machine.slots())
            case "/v1/status":
                self._reply(200, _status(machine.settings))
            case "/status":
                self._reply(200, machine.status())
            case _:
                self._refuse(Refusal(404, f"no such path {self.path}"))

    def do_POST(self) -> None:
        try:
            self._post()
        except Refusal as refusal:
            self._refuse(refusal)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _post(self) -> None:
        body = self._body()
        self._check_origin()
        url = urlsplit(self.path)
        if url.path == "/v1/chat/completions":
            self._chat(_object(body))
        elif url.path.startswith("/slots/"):
            if self.headers.get_content_type() != "application/json":
                raise Refusal(415, "Content-Type must be application/json")
            action = parse_qs(url.query).get("action", [None])[0]
            name = _object(body).get("filename")
            self._reply(200, self.server.machine.session(url.path.removeprefix("/slots/"), action, name))
        else:
            raise Refusal(404, f"no such path {self.path}")

    def _chat(self, request: Mapping[str, object]) -> None:
        machine = self.server.machine
        with machine.fifo.turn():
            answer = machine.read(request)
            if request.get("stream") is True:
                self._stream(machine, answer)
            else:
                text = "".join(machine.write(answer, self._gone))
                self._reply(200, _completion(machine.settings.model, answer, text))

    def _stream(self, machine: Machine, answer: Answer) -> None:
        self._head(200, "text/event-stream")
        self._event(_chunk(machine.settings.model, {"role": "assistant", "content": ""}))
        # One comment for each chunk of the prompt that was read; the double reads a prompt in one.
        self.wfile.write(b": keep-alive\n\n")
        for piece in machine.write(answer, self._gone):
            self._event(_chunk(machine.settings.model, {"content": piece}))
        last = _chunk(machine.settings.model, {}, _finish(answer))
        self._event({**last, "usage": answer.usage, "timings": answer.timings})
        self.wfile.write(b"data: [DONE]\n\n")

    def _event(self, data: object) -> None:
        self.wfile.write(f"data: {json.dumps(data)}\n\n".encode())

    def _gone(self) -> bool:
        """True when the client has closed its connection."""
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        data = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def _check_origin(self) -> None:
        origin = self.headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != self.headers.get("Host"):
            raise Refusal(403, f"requests from {origin} are not allowed")

    def _refuse(self, refusal: Refusal) -> None:
        self._reply(refusal.status, refusal.body)

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


def _object(body: bytes) -> dict[str, object]:
    try:
        value = json.loads(body)
    except ValueError as error:
        raise Refusal(400, f"the body is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Refusal(400, "the body is not a JSON object")
    return value


def _health(settings: Settings) -> dict[str, object]:
    counts = {"status": "ok", "max_context": settings.max_context, "model": settings.model}
    return {**counts, "images": False, "api_key": False, "loaded": True, "service": "strata"}


def _status(settings: Settings) -> dict[str, object]:
    """The part of /v1/status that says what runs."""
    known = {"service": "strata", "model": settings.model, "loaded": True, "context": settings.max_context}
    return {**known, "engine": VERSION, "concurrency": {"serving": 1, "requested": 1}, "vision": False}


def _finish(answer: Answer) -> str:
    return "stop" if answer.finish == "cancel" else answer.finish


def _chunk(model: str, delta: Mapping[str, object], finish: str | None = None) -> dict[str, object]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {"id": "chatcmpl-double", "object": "chat.completion.chunk", "created": _CREATED, "model": model}
    return {**head, "choices": [choice]}


def _completion(model: str, answer: Answer, text: str) -> dict[str, object]:
    message = {"role": "assistant", "content": text or None}
    choice = {"index": 0, "message": message, "finish_reason": _finish(answer)}
    head = {"id": "chatcmpl-double", "object": "chat.completion", "created": _CREATED, "model": model}
    return {**head, "choices": [choice], "usage": answer.usage, "timings": answer.timings}


def _stop(*_: object) -> None:
    raise SystemExit(0)


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _check_port(settings: Settings) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((settings.host, settings.port))
        except OSError as error:
            sys.stderr.write(f"error: port {settings.port} is taken: {error.strerror}\n")
            raise SystemExit(2) from error


def main(argv: Sequence[str] | None = None) -> None:
    """Run until SIGTERM or SIGINT. Port free? Load. Only then listen."""
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    settings = parse(argv)
    _check_port(settings)
    _say(f"[strata] loading {settings.model}")
    time.sleep(settings.load_seconds)
    with DoubleServer(Machine(settings)) as server:
        _say(f"ready: http://{settings.host}:{server.server_address[1]}/v1")
        server.serve_forever(poll_interval=0.05)


if __name__ == "__main__":
    main()
