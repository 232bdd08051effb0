"""Traces: whether what sends them is installed and has its headers, and whether the collector takes a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Final
from urllib.parse import urlsplit

from viiwork_core.cli.doctor.situation import Situation, ok, problem, warning
from viiwork_core.config.telemetry import TelemetryConfig
from viiwork_core.contracts.doctor import Finding

CONNECT_S: Final = 3.0
"""For one connection. A collector is near, or at least awake."""

USUAL: Final = "http://localhost:4318"
"""Where OpenTelemetry sends when nothing says where."""

_VARIABLES: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PORTS: Final = {"http": 80, "https": 443}


async def telemetry(situation: Situation) -> Sequence[Finding]:
    """Nothing where no traces are wanted. Nothing is sent: a connection is opened, and closed again."""
    if situation.machine is None or not situation.machine.config.telemetry.wanted:
        return []
    config, environ = situation.machine.config.telemetry, situation.environ
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return [warning("no traces are sent: OTEL_SDK_DISABLED is true", "unset it, or remove telemetry")]
    refused = [one for one in (_installed(), _headers(config, environ)) if one is not None]
    return [*refused, await _collector(*_endpoint(config, environ))]


def _installed() -> Finding | None:
    """Not, as a node finds out that starts."""
    try:
        import_module("viiwork_core.observe.otlp")
    except ImportError as error:
        what = f"traces are wanted, and OpenTelemetry is not installed ({error.name}): a node does not start"
        return problem(what, "pip install 'viiwork[otel]', or remove telemetry")
    return None


def _headers(config: TelemetryConfig, environ: Mapping[str, str]) -> Finding | None:
    variable = config.headers_env
    if variable is None or environ.get(variable, "").strip():
        return None
    what = f"telemetry.headers_env: {variable} is not set: a node does not start"
    return problem(what, "set it to NAME=VALUE as for the node, or remove headers_env")


def _endpoint(config: TelemetryConfig, environ: Mapping[str, str]) -> tuple[str, str]:
    """The collector's URL, and what names it."""
    if config.endpoint is not None:
        return config.endpoint, "telemetry.endpoint"
    for variable in _VARIABLES:
        if url := environ.get(variable, "").strip():
            return url, variable
    return USUAL, "telemetry.endpoint"


async def _collector(url: str, named_by: str) -> Finding:
    place = _place(url)
    if place is None:
        # The URL itself is not repeated: a variable's may hold a password.
        return problem(f"{named_by} is no http or https URL: no trace arrives", "write http://HOST:4318")
    host, port = place
    try:
        async with asyncio.timeout(CONNECT_S):
            _, writer = await asyncio.open_connection(host, port)
    except (OSError, TimeoutError) as error:
        why = str(error) or f"no connection within {CONNECT_S:g} s"
        what = f"the collector of traces does not answer at {host} tcp {port}: {why}"
        return warning(what, f"start it, or correct {named_by}; until then traces are dropped, and requests go on")
    writer.close()
    return ok(f"the collector of traces takes connections at {host} tcp {port}")


def _place(url: str) -> tuple[str, int] | None:
    """Host and port of a URL; None: it is none for OTLP over HTTP."""
    try:
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
    except (ValueError, KeyError):
        return None
    return (parts.hostname, port) if parts.hostname and parts.scheme in _PORTS else None
