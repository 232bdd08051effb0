"""What sends a node's traces, where its configuration wants that."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from importlib.metadata import version
from urllib.parse import unquote

import structlog

from viiwork_core.clock import Clock
from viiwork_core.config.schema import Config
from viiwork_core.errors import ConfigError
from viiwork_core.observe.traces import Traces

_NAME = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]+")
_log = structlog.get_logger("viiwork.traces")


def traces_of(config: Config, clock: Clock, environ: Mapping[str, str] = os.environ) -> Traces | None:
    """What sends traces; None: they are off. OpenTelemetry's own variables are read by its library, from the process.

    Raises ConfigError where it is not installed, or the variable with the headers is not as it should be.
    """
    telemetry = config.telemetry
    if not telemetry.wanted:
        return None
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        _log.warning("no traces are sent", reason="OTEL_SDK_DISABLED is true")
        return None
    headers = None if telemetry.headers_env is None else _headers(telemetry.headers_env, environ)
    try:
        from viiwork_core.observe.otlp import Otlp
    except ImportError as error:
        what = f"telemetry: traces are wanted, and OpenTelemetry is not installed ({error.name})"
        raise ConfigError(what, remedy="pip install 'viiwork[otel]', or remove telemetry") from error
    made = Otlp(
        config.node.name,
        version("viiwork"),
        clock,
        endpoint=telemetry.endpoint,
        headers=headers,
        sample_ratio=telemetry.sample_ratio,
        service_name=telemetry.service_name,
    )
    _log.info("traces are sent", endpoint=telemetry.endpoint or "as OTEL_EXPORTER_OTLP_ENDPOINT says")
    return made


def _headers(variable: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The headers in a variable, as OTEL_EXPORTER_OTLP_HEADERS has them. No error repeats any of it."""
    text = environ.get(variable, "").strip()
    found = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = pair.partition("=")
        name, value = name.strip().lower(), unquote(value.strip())
        if not equals or not _NAME.fullmatch(name) or not value.isprintable():
            raise ConfigError(
                f"telemetry.headers_env: {variable} is no list of headers", remedy="write NAME=VALUE,NAME=VALUE"
            )
        found[name] = value
    if not found:
        raise ConfigError(
            f"telemetry.headers_env: {variable} is not set", remedy="set it to NAME=VALUE, or remove headers_env"
        )
    return found
