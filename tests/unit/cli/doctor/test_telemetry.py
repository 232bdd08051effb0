"""What the doctor finds where traces are wanted."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator, Mapping, Sequence

import pytest

from viiwork_core.cli.doctor.situation import Machine, Situation
from viiwork_core.cli.doctor.telemetry import telemetry
from viiwork_core.config.load import parse_config
from viiwork_core.contracts.doctor import Finding, Level
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.options import resolve


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def collector() -> Iterator[int]:
    """The port of one that takes connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port that nobody listens on, and nobody else gets meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


async def found(block: str, environ: Mapping[str, str] | None = None) -> Sequence[Finding]:
    config = parse_config(f"telemetry: {block}\nmesh: {{network: none}}", {"HOME": "/nowhere"})
    registry = load_plugins({"VIIWORK_PLUGINS": ""})
    machine = Machine(config, registry, resolve(config, registry))
    return await telemetry(Situation(environ or {}, 5, machine, None))


def only(findings: Sequence[Finding], level: Level) -> Finding:
    (one,) = findings
    assert one.level is level
    return one


@pytest.mark.anyio
@pytest.mark.parametrize("block", ["{}", "{traces: false, endpoint: 'http://127.0.0.1:4318'}"])
async def test_where_none_are_wanted_nothing_is_looked_at(block: str) -> None:
    assert await found(block) == []


@pytest.mark.anyio
async def test_another_machine_s_node_is_not_looked_at() -> None:
    assert await telemetry(Situation({}, 5, None, None)) == []


@pytest.mark.anyio
async def test_a_collector_that_takes_connections(collector: int) -> None:
    finding = only(await found(f"{{endpoint: 'http://127.0.0.1:{collector}'}}"), Level.OK)
    assert finding.what == f"the collector of traces takes connections at 127.0.0.1 tcp {collector}"


@pytest.mark.anyio
async def test_a_collector_that_is_away(nobody: int) -> None:
    finding = only(await found(f"{{endpoint: 'http://127.0.0.1:{nobody}'}}"), Level.WARNING)
    assert f"does not answer at 127.0.0.1 tcp {nobody}: " in finding.what
    assert finding.remedy.startswith("start it, or correct telemetry.endpoint")


@pytest.mark.anyio
@pytest.mark.parametrize("variable", ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"])
async def test_one_that_opentelemetry_s_own_variable_names(variable: str, collector: int, nobody: int) -> None:
    environ = {variable: f"http://127.0.0.1:{collector}/otlp"}
    only(await found("{traces: true}", environ), Level.OK)
    away = only(await found("{traces: true}", {variable: f"http://127.0.0.1:{nobody}"}), Level.WARNING)
    assert variable in away.remedy


@pytest.mark.anyio
@pytest.mark.parametrize("url", ["collector:4318", "http://me:hush@", "http://host:port", "ftp://host:21"])
async def test_a_variable_that_names_none_is_told_without_what_it_holds(url: str) -> None:
    finding = only(await found("{traces: true}", {"OTEL_EXPORTER_OTLP_ENDPOINT": url}), Level.PROBLEM)
    assert finding.what == "OTEL_EXPORTER_OTLP_ENDPOINT is no http or https URL: no trace arrives"


@pytest.mark.anyio
async def test_without_opentelemetry_no_node_starts(collector: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "viiwork_core.observe.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)  # what makes an import fail
    missing, answers = await found(f"{{endpoint: 'http://127.0.0.1:{collector}'}}")
    assert (missing.level, answers.level) == (Level.PROBLEM, Level.OK)
    assert "OpenTelemetry is not installed (opentelemetry)" in missing.what
    assert missing.remedy == "pip install 'viiwork[otel]', or remove telemetry"


@pytest.mark.anyio
async def test_headers_that_are_not_set(collector: int) -> None:
    block = f"{{endpoint: 'http://127.0.0.1:{collector}', headers_env: KEY}}"
    unset, _ = await found(block)
    assert unset.level is Level.PROBLEM
    assert unset.what.startswith("telemetry.headers_env: KEY is not set")
    only(await found(block, {"KEY": "x-key=hush"}), Level.OK)


@pytest.mark.anyio
async def test_opentelemetry_s_own_switch() -> None:
    block = "{endpoint: 'http://127.0.0.1:4318'}"
    assert "OTEL_SDK_DISABLED" in only(await found(block, {"OTEL_SDK_DISABLED": "True"}), Level.WARNING).what
