"""A collector of traces: OTLP over HTTP, read with OpenTelemetry's own messages."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


@dataclass(frozen=True)
class Span:
    """One span as it came."""

    service: str
    node: str
    name: str
    kind: int
    """1 internal, 2 server, 3 client."""

    trace: str
    id: str
    parent: str
    start: int
    end: int
    attributes: dict[str, Any]
    events: tuple[str, ...]
    error: bool


class Collector:
    """What has come so far."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self.raw = b""
        self.headers: list[dict[str, str]] = []
        self._spans: list[Span] = []
        self._lock = threading.Lock()

    def take(self, headers: dict[str, str], body: bytes) -> None:
        plain = gzip.decompress(body) if headers.get("content-encoding") == "gzip" else body
        told = ExportTraceServiceRequest.FromString(plain)
        with self._lock:
            self.raw += plain
            self.headers.append(headers)
            for group in told.resource_spans:
                resource = _values(group.resource.attributes)
                for scope in group.scope_spans:
                    self._spans += [_span(resource, one) for one in scope.spans]

    def spans(self, rid: str) -> list[Span]:
        """All of the traces that a request with this id is in, in the order of their starts."""
        with self._lock:
            traces = {one.trace for one in self._spans if one.attributes.get("viiwork.request_id") == rid}
            return sorted((one for one in self._spans if one.trace in traces), key=lambda one: one.start)


def _values(pairs: Any) -> dict[str, Any]:
    return {one.key: _value(one.value) for one in pairs}


def _value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [_value(one) for one in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def _span(resource: dict[str, Any], one: Any) -> Span:
    return Span(
        service=resource["service.name"],
        node=resource["service.instance.id"],
        name=one.name,
        kind=one.kind,
        trace=one.trace_id.hex(),
        id=one.span_id.hex(),
        parent=one.parent_span_id.hex(),
        start=one.start_time_unix_nano,
        end=one.end_time_unix_nano,
        attributes=_values(one.attributes),
        events=tuple(event.name for event in one.events),
        error=one.status.code == 2,
    )


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = 200 if self.path == "/v1/traces" else 404
            if status == 200:
                collector.take({name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_request(self, *_: object) -> None:
            """Nothing: the test says what matters."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(server.server_address[1])
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
