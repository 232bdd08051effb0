"""Traces by OpenTelemetry's SDK, sent over OTLP/HTTP by the SDK's own thread. Imported only where traces are on."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

import structlog
from opentelemetry import trace as api
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from viiwork_core.clock import Clock
from viiwork_core.observe.traces import Chosen, Ending, Header

END_S: Final = 3.0
"""Seconds for which a node that stops still tries to send."""

LONGEST_HEADER: Final = 2048
"""Of a client's traceparent or tracestate; a longer one is not read. The standard asks for 512 at least."""

OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""gen_ai.operation.name, as the conventions name them."""

FINISHES: Final = (
    "stop|length|tool_calls|content_filter|function_call|end_turn|max_tokens|stop_sequence|tool_use|pause_turn|refusal"
)
_FINISH: Final = re.compile(rb'"(?:finish_reason|stop_reason)"\s*:\s*"(' + FINISHES.encode() + rb')"')
"""Only these words: what a model writes is no reason. Inside a text the quotes would be escaped."""

_CARRIED: Final = ("traceparent", "tracestate")
_propagator = TraceContextTextMapPropagator()
_log = structlog.get_logger("viiwork.traces")


class Otlp:
    """The traces of one node."""

    def __init__(
        self,
        node: str,
        version: str,
        clock: Clock,
        *,
        endpoint: str | None = None,
        headers: Mapping[str, str] | None = None,
        sample_ratio: float | None = None,
        service_name: str | None = None,
    ) -> None:
        """What is None is as OpenTelemetry's variables say, or its defaults. `endpoint`: without /v1/traces."""
        self._node = node
        self._clock = clock
        exporter = OTLPSpanExporter(
            endpoint=None if endpoint is None else endpoint.removesuffix("/v1/traces") + "/v1/traces",
            headers=None if headers is None else dict(headers),
        )
        self._exporter = _Exporter(exporter)
        self._provider = TracerProvider(
            sampler=None if sample_ratio is None else ParentBased(TraceIdRatioBased(sample_ratio)),
            resource=_resource(node, version, service_name),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("viiwork", version)
        # Each failed try would be a line; what matters is told by _Exporter, once.
        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
        logging.getLogger("urllib3").setLevel(logging.WARNING)

    def began(self, headers: Sequence[tuple[bytes, bytes]], rid: str, at: float) -> RequestTrace:
        """As of Traces."""
        offset = self._clock.wall() - self._clock.monotonic()
        context = _propagator.extract(_carrier(headers))
        attributes = {"viiwork.request_id": rid, "viiwork.node": self._node}
        span = self._tracer.start_span("request", context, SpanKind.SERVER, attributes, start_time=_ns(at + offset))
        return RequestTrace(self._tracer, span, at, offset)

    async def run(self) -> None:
        """Until it is cancelled; then the rest is sent, for END_S at most."""
        try:
            await asyncio.Event().wait()
        finally:
            await self._end()

    async def _end(self) -> None:
        # A daemon of its own: the process must be able to end while a collector does not answer.
        ending = threading.Thread(target=self._provider.shutdown, name="traces-end", daemon=True)
        ending.start()
        for _ in range(round(END_S / 0.02)):
            if not ending.is_alive():
                return
            await asyncio.sleep(0.02)
        self._exporter.shutdown()


class RequestTrace:
    """One request's. On the data loop."""

    def __init__(self, tracer: api.Tracer, span: Span, began: float, offset: float) -> None:
        """`offset`: what makes Unix seconds of monotonic ones."""
        self._tracer = tracer
        self._began = began
        self._span = span
        self._context = api.set_span_in_context(span)
        self._offset = offset
        self._call: Span | None = None
        self._called_at = 0.0
        self._finishes: list[str] = []

    def calls(self, kind: Literal["engine", "peer"], name: str, headers: Sequence[Header], at: float) -> list[Header]:
        """As of Trace."""
        title = "engine" if kind == "engine" else "forward"
        attributes = {"viiwork.backend" if kind == "engine" else "viiwork.peer": name}
        self._call = self._start(title, at, SpanKind.CLIENT, attributes)
        self._called_at = at
        return [*(pair for pair in headers if pair[0].lower() not in _CARRIED), *_carry(self._call)]

    def failed(self, code: str, at: float) -> None:
        """As of Trace."""
        if self._call is None:
            self._span.add_event("failed before it was sent", {"error.type": code}, self._ns(at))
            return
        self._call.set_attribute("error.type", code)
        self._call.set_status(Status(StatusCode.ERROR))
        self._call.end(self._ns(at))
        self._call = None

    def did(self, step: Literal["import", "save"], began: float, ended: float) -> None:
        """As of Trace."""
        self._start(step, began).end(self._ns(ended))

    def read(self, end: bytes) -> None:
        """As of Trace."""
        self._finishes = [word.decode() for word in dict.fromkeys(_FINISH.findall(end))]

    def ended(self, ending: Ending) -> None:
        """As of Trace."""
        at = self._began + ending.seconds
        self._waited(ending, at)
        for choice in ending.choices:
            self._start("choose", choice.at, attributes=_choice(choice)).end(self._ns(choice.at))
        told = _told(ending, self._finishes)
        bad = ending.status >= 500 or ending.status == 499 or ending.cut
        if self._call is not None:
            self._call_ended(self._call, ending, told, at, bad=bad)
        operation = OPERATIONS.get(ending.path)
        self._span.update_name(f"{operation or 'request'} {ending.model}".rstrip())
        self._span.set_attributes({**told, **_request(ending)})
        if bad:
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(self._ns(at))

    def _waited(self, ending: Ending, at: float) -> None:
        """The wait for a place, which ended when the last one was granted."""
        if ending.queued_s > 0:
            until = ending.granted_at or at
            self._start("queue", until - ending.queued_s).end(self._ns(until))

    def _call_ended(self, call: Span, ending: Ending, told: Mapping[str, Any], at: float, *, bad: bool) -> None:
        first = ending.first_token_at or ending.first_byte_at
        if first is not None:
            call.add_event("first token", timestamp=self._ns(first))
            call.set_attribute("gen_ai.response.time_to_first_chunk", max(0.0, first - self._called_at))
        call.set_attributes({**told, "http.response.status_code": ending.status})
        if bad:
            call.set_attribute("error.type", _error(ending))
            call.set_status(Status(StatusCode.ERROR))
        call.end(self._ns(at))

    def _start(
        self,
        name: str,
        at: float,
        kind: SpanKind = SpanKind.INTERNAL,
        attributes: Mapping[str, str | int] | None = None,
    ) -> Span:
        return self._tracer.start_span(name, self._context, kind, attributes, start_time=self._ns(at))

    def _ns(self, at: float) -> int:
        return _ns(at + self._offset)


class _Exporter(SpanExporter):
    """Another one, whose failure is told once, until it works again."""

    def __init__(self, inner: SpanExporter) -> None:
        self._inner = inner
        self._failing = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self._inner.export(spans)
        failed = result is not SpanExportResult.SUCCESS
        if failed and not self._failing:
            remedy = "see that the collector of telemetry.endpoint runs and takes OTLP over HTTP; requests go on"
            _log.warning("traces cannot be sent, and are dropped", remedy=remedy)
        elif self._failing and not failed:
            _log.info("traces are sent again")
        self._failing = failed
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()


def _resource(node: str, version: str, service_name: str | None) -> Resource:
    own = {"service.instance.id": node, "service.version": version}
    resource = Resource.create({**own, **({SERVICE_NAME: service_name} if service_name else {})})
    if str(resource.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        resource = resource.merge(Resource({SERVICE_NAME: "viiwork"}))
    return resource


def _carrier(headers: Sequence[tuple[bytes, bytes]]) -> dict[str, list[str]]:
    """What of a request's headers says which trace it belongs to."""
    found: dict[str, list[str]] = {}
    for name, value in headers:
        lower = name.lower()
        if lower in (b"traceparent", b"tracestate") and len(value) <= LONGEST_HEADER:
            found.setdefault(lower.decode(), []).append(value.decode("latin-1"))
    # Two parents are none.
    return found if len(found.get("traceparent", ())) == 1 else {}


def _carry(span: Span) -> list[Header]:
    carrier: dict[str, str] = {}
    _propagator.inject(carrier, api.set_span_in_context(span))
    return list(carrier.items())


def _choice(choice: Chosen) -> dict[str, str | int]:
    told = {"viiwork.chosen": choice.host, "viiwork.policy": choice.policy, "viiwork.candidates": choice.candidates}
    return {name: value for name, value in told.items() if value is not None}


def _told(ending: Ending, finishes: Sequence[str]) -> dict[str, Any]:
    """What the conventions for generative models have names for."""
    operation, model = OPERATIONS.get(ending.path), ending.model or None
    told = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "viiwork",
        "gen_ai.request.model": ending.alias or model,
        "gen_ai.response.model": model,
        "gen_ai.request.stream": True if ending.stream else None,
        "gen_ai.response.finish_reasons": list(finishes) or None,
        "gen_ai.usage.input_tokens": ending.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": ending.cached_tokens,
        "gen_ai.usage.output_tokens": ending.completion_tokens,
    }
    return {name: value for name, value in told.items() if value is not None}


def _request(ending: Ending) -> dict[str, Any]:
    told = {
        "http.request.method": "POST",
        "http.response.status_code": ending.status,
        "url.path": ending.path,
        "error.type": _error(ending) if ending.status >= 400 or ending.cut else None,
        "viiwork.backend": ending.backend,
        "viiwork.peer": ending.peer,
        "viiwork.forwarded_here": True if ending.hop else None,
        "viiwork.session": ending.session or None,
        "viiwork.queued_ms": round(ending.queued_s * 1000),
    }
    return {name: value for name, value in told.items() if value is not None}


def _error(ending: Ending) -> str:
    return "answer_cut" if ending.cut and ending.status != 499 else str(ending.status)


def _ns(seconds: float) -> int:
    return int(seconds * 1e9)
