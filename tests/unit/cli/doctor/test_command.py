"""viiwork doctor where no node runs: its output, its exit status, and what plugins add."""

from __future__ import annotations

import json
import logging
import socket
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner, Result

from viiwork_core.cli import main
from viiwork_core.cli.doctor.report import Report
from viiwork_core.contracts.doctor import Finding, Level

PLUGIN = """
import asyncio
from viiwork_core import *

class Acme(Engine, Prepares, Advises, RunsOnCpu):
    name = "acme"
    wire = Wire(frozenset({"/v1/chat/completions"}))
    async def prepare(self, spec):
        if spec.context == 13: raise ConfigError("13 is no context", remedy="take 14")
    def launch(self, spec): return Launch(("/bin/sh", "-c", "true"))
    async def advice(self, spec): return ["it is slow here; take a card"] if spec.context > 100 else []
    async def probe(self, address): return Probe(True)
    async def load(self, spec, address): return Load(1, 0)

class Fans(DoctorCheck):
    name = "fans"
    async def run(self, context):
        assert context.services.state_dir.is_dir()
        (model,) = context.models
        token = "sesame-open"
        return [Finding(Level.OK, f"{model.engine} has {len(model.specs)} backends, node {context.api}, {token}")]

class Raises(DoctorCheck):
    name = "raises"
    async def run(self, context): raise RuntimeError("boom")

class Strange(DoctorCheck):
    name = "strange"
    async def run(self, context): return ["well"]

@hookimpl
def viiwork_register_engine(): return Acme

@hookimpl
def viiwork_register_doctor_check(): return CHECKS
"""


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Install the plugin with these checks."""

    def put(checks: str) -> None:
        module = f"stranger_{abs(hash(tmp_path)):x}"
        info = tmp_path / "viiwork_acme-1.dist-info"
        info.mkdir()
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(PLUGIN).replace("CHECKS", checks))
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: viiwork-acme\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[viiwork]\nacme = {module}\n")
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.setenv("VIIWORK_PLUGINS", "acme")

    return put


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VIIWORK_PLUGINS", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("VIIWORK_MESH_SECRET", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


def run(folder: Path, text: str, *args: str, command: str = "doctor") -> Result:
    file = folder / "v.yaml"
    file.write_text(f"node: {{name: a, state_dir: '{folder}/state'}}\n{text}")
    return CliRunner().invoke(main.cli, [command, "--config", str(file), *args])


ALONE = "mesh: {network: none}\napi: {port: 0}\n"


def model(context: int) -> str:
    return f"{ALONE}models: [{{name: m, engine: acme, context: {context}}}]"


@pytest.mark.parametrize("command", ["doctor", "accept"])
def test_all_is_well(tmp_path: Path, command: str) -> None:
    result = run(tmp_path, ALONE, command=command)
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert "config" in lines
    assert "  ok       node a, models: none, policy: fastest, discovery: none" in lines
    assert lines[-1].endswith("ok, 0 warnings, 0 problems")


def test_one_is_counted_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    report = Report({}, as_json=False)
    report.add("topic", [Finding(Level.WARNING, "odd", "mend it")])
    assert report.end() == 1
    assert capsys.readouterr().out.splitlines()[-1] == "0 ok, 1 warning, 0 problems"


def test_a_warning_is_1(tmp_path: Path, install: Callable[[str], None]) -> None:
    install("[]")
    result = run(tmp_path, model(1000))
    assert result.exit_code == 1, result.output
    assert "  warning  m/0: it is slow here\n           remedy: take a card\n" in result.output


def test_a_problem_is_2(tmp_path: Path, install: Callable[[str], None]) -> None:
    install("[]")
    result = run(tmp_path, model(13), "--json")
    assert result.exit_code == 2, result.output
    told = {"topic": "binaries", "level": "problem", "what": "m: 13 is no context", "remedy": "take 14"}
    told["what"] = "m/0: 13 is no context"
    assert told in json.loads(result.output)


def test_a_configuration_that_cannot_be_used(tmp_path: Path) -> None:
    result = run(tmp_path, "api: {port: 99999}\nmesh: {netwerk: none}", "--json")
    assert result.exit_code == 2
    found = json.loads(result.output)
    assert {one["level"] for one in found if one["topic"] == "config"} == {"problem"}
    assert all(one["remedy"] for one in found if one["level"] != "ok")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = CliRunner().invoke(main.cli, ["doctor", "--config", str(tmp_path / "none.yaml")])
    assert result.exit_code == 2
    assert "cannot be read" in result.output


def test_ports_that_are_taken(tmp_path: Path) -> None:
    with socket.socket() as api, socket.socket(type=socket.SOCK_DGRAM) as gossip:
        api.bind(("127.0.0.1", 0))
        api.listen()
        gossip.bind(("127.0.0.1", 0))
        port = api.getsockname()[1]
        result = run(tmp_path, f"mesh: {{network: none}}\napi: {{port: {port}}}", "--only", "ports")
        assert result.exit_code == 2
        assert f"cannot listen on 127.0.0.1 port {port}" in result.output
        mesh = f"mesh: {{network: seeds, open: true, advertise: 127.0.0.1, bind_port: {gossip.getsockname()[1]}}}"
        result = run(tmp_path, f"{mesh}\napi: {{port: 0}}", "--only", "ports")
        assert result.exit_code == 2
        # Somebody else may have the same number for TCP at the moment.
        assert "mesh.bind_port: cannot listen on 127.0.0.1" in result.output
        assert "api.port is 0: no firewall can be told" in result.output


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("mesh: {network: seeds, open: true, advertise: 203.0.113.7}", "mesh.advertise"),
        ("mesh: {network: none}\napi: {host: 203.0.113.7}", "api.host"),
        (
            "mesh: {network: seeds, advertise: 127.0.0.1}\n"
            "models: [{name: m, engine: llamacpp, path: m, context: 9000, kv_share: {group: g, address: 203.0.113.7}}]",
            "models[m].kv_share.address",
        ),
    ],
)
def test_an_address_of_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, key: str) -> None:
    monkeypatch.setenv("VIIWORK_PLUGINS", "llamacpp")
    result = run(tmp_path, text, "--only", "ports", "--json")
    (found,) = (one for one in json.loads(result.output) if one["topic"] == "ports")
    assert found["what"].startswith(f"{key}: this machine cannot listen on 203.0.113.7: ")
    assert found["remedy"].startswith(f"set {key} to an address of this machine")


def test_a_missing_model_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIIWORK_PLUGINS", "llamacpp")
    text = f"{ALONE}models: [{{name: m, engine: llamacpp, path: '{tmp_path}/none.gguf', context: 4096}}]"

    def problems(*args: str) -> list[str]:
        found = json.loads(run(tmp_path, text, "--json", *args).output)
        return [one["topic"] for one in found if f"{tmp_path}/none.gguf" in one["what"]]

    assert problems() == ["files"]
    assert problems("--only", "binaries") == ["binaries"]


def test_ports_that_are_free(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    text = f"mesh: {{network: seeds, open: true, advertise: 127.0.0.1, bind_port: {port}}}\napi: {{port: {port + 0}}}"
    result = run(tmp_path, text, "--only", "ports")
    assert f"tcp {port} is free for the API on 127.0.0.1" in result.output
    assert f"tcp and udp {port} are free for the gossip on 127.0.0.1" in result.output


def test_checks_of_plugins(tmp_path: Path, install: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    install("[Fans, Raises, Strange]")
    monkeypatch.setenv("ACME_TOKEN", "sesame-open")
    result = run(tmp_path, model(50), "--only", "plugins", "--json")
    found = {one["topic"]: one for one in json.loads(result.output)}
    assert found["fans"]["what"] == "acme has 1 backends, node None, ***"
    assert found["raises"]["level"] == "warning"
    assert "boom" in found["raises"]["what"]
    assert "is no Finding" in found["strange"]["what"]
    assert found["strange"]["remedy"]
    assert result.exit_code == 1


def test_plugins_are_listed_with_their_checks(install: Callable[[str], None]) -> None:
    install("Fans")
    result = CliRunner().invoke(main.cli, ["plugin", "list", "--json"])
    assert ("doctor", "fans") in {(one["kind"], one["name"]) for one in json.loads(result.output)}
    checked = CliRunner().invoke(main.cli, ["plugin", "check", "fans"])
    assert "there is none for this kind" in checked.output
