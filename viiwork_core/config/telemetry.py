"""The block of the configuration about traces."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from viiwork_core.config.blocks import Block
from viiwork_core.config.values import Variable, Word, http_parts


def _url(value: str) -> str:
    parts = http_parts(value)
    if parts is None or not value.isprintable():
        raise ValueError("must be an http or https URL, such as http://127.0.0.1:4318")
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError("must be without a user, a query and a fragment; headers go into the variable of headers_env")
    return value.rstrip("/")


class TelemetryConfig(Block):
    """Traces of requests for OpenTelemetry (docs/telemetry.md): times, sizes and names, never text. Needs
    `pip install 'viiwork[otel]'`. What is unset here is as OpenTelemetry's own variables say, OTEL_*."""

    traces: bool | None = None
    """true: traces are sent, to endpoint or to where OTEL_EXPORTER_OTLP_ENDPOINT says. Unset: if there is an
    endpoint here."""

    endpoint: Annotated[str, AfterValidator(_url), Field(title="URL")] | None = None
    """The collector's address for OTLP over HTTP, `http://HOST:4318`; /v1/traces is added to it."""

    headers_env: Variable | None = None
    """Environment variable with headers for the collector, NAME=VALUE[,NAME=VALUE...], such as its key. Never the
    headers themselves."""

    sample_ratio: Annotated[float, Field(ge=0, le=1)] | None = None
    """Share of the requests that are traced, 0 to 1; a request whose client sends a traceparent is traced if that says
    so. Unset: all, or as OTEL_TRACES_SAMPLER says."""

    service_name: Word | None = None
    """service.name of all spans. Unset: OTEL_SERVICE_NAME, else viiwork. The node's name is service.instance.id."""

    @property
    def wanted(self) -> bool:
        """Whether traces are sent."""
        return self.endpoint is not None if self.traces is None else self.traces
