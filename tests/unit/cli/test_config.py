"""viiwork config show, schema and docs. An engine of a stranger stands for all engines."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
import yaml
from click.testing import CliRunner, Result

from viiwork_core.cli import main
from viiwork_core.config.load import parse_config

ENGINE = """
import sys

from viiwork_core import *


class Options(PluginOptions):
    level: int = 3
    token: str = ""


class Acme(Engine, Prepares, Advises, RunsOnCpu):
    name = "acme"
    Options = Options
    wire = Wire(frozenset({"/v1/chat/completions"}))

    async def prepare(self, spec):
        if spec.path is None:
            raise ConfigError(f"model {spec.model}: path is missing", remedy="add it,\\nor $ACME")
        self.said = (await self.context.run_command([sys.executable, "-c", "print(7)"])).text.strip()

    def launch(self, spec):
        argv = ("acme", str(spec.path), "--port", str(spec.port), "--said", self.said)
        argv += ("--state", str(self.context.state_dir)) if spec.cache_dir is None else ("--kv", str(spec.cache_dir))
        return Launch((*argv, "--level", str(self.options.level), *spec.args), {"ACME": "a b"})

    async def advice(self, spec):
        return [f"{spec.context} is a lot; take 1", f"{spec.gpus}, {spec.node_backends}"] if spec.context > 1 else []

    async def probe(self, address): return Probe(True)
    async def load(self, spec, address): return Load(1, 0)


class AcmeCache(CacheTransfer):
    engine = "acme"
    async def fingerprint(self, spec, address): return {}
    async def save(self, spec, address, session, name): raise AssertionError
    async def restore(self, spec, address, session, name): raise AssertionError
    async def holds(self, spec, address, session): return None
    def read(self, path): raise AssertionError


@hookimpl
def viiwork_register_engine(): return Acme

@hookimpl
def viiwork_register_cache_transfer(): return AcmeCache
"""


@pytest.fixture(autouse=True)
def _acme(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A distribution as pip would leave it; the module's name is the test's own, since imported modules outlive it."""
    module = f"stranger_{abs(hash(tmp_path)):x}"
    info = tmp_path / "viiwork_acme-1.dist-info"
    info.mkdir()
    (tmp_path / f"{module}.py").write_text(textwrap.dedent(ENGINE))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: viiwork-acme\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[viiwork]\nacme = {module}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("VIIWORK_PLUGINS", "acme")
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()


def run(*args: str) -> Result:
    return CliRunner().invoke(main.cli, args, prog_name="viiwork")


TEXT = """
node: {name: box, state_dir: STATE}
mesh: {seeds: ["192.0.2.1:7946"]}
gpu: {vendor: nvidia}
models:
- {name: m, engine: acme, context: 1, path: /m, gpus: [0, 1], acme: {token: hunter2}, env: {MY_KEY: hunter3, B: "1"},
   args: [--api-key, hunter4], kv_share: {group: g}}
- {name: n, engine: acme, context: 1}
- {name: o, engine: acme, context: 1, path: /o}
- {name: e, engine: external, context: 1, external: {urls: ["http://127.0.0.1:9001/v1"]}}
power: {}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "v.yaml"
    path.write_text(TEXT.replace("STATE", str(tmp_path / "state")))
    return path


def test_show_prints_a_configuration_and_what_would_be_started(file: Path, tmp_path: Path) -> None:
    result = run("config", "show", str(file))
    assert result.exit_code == 0, result.output
    state = tmp_path / "state"
    first, *rest = result.stdout.splitlines()
    assert first == f"# {file}"
    pin = "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES={0} GGML_VK_VISIBLE_DEVICES={0}"
    assert [line for line in rest if line.startswith("#")] == [
        "# What would be started; a port of 0 is drawn at each launch:",
        *(
            f"# m/{n}: {pin.format(n)} ACME='a b' MY_KEY='***' B=1 acme /m --port 0 --said 7 "
            f"--kv {state}/kv/engines/m-{n} --level 3 --api-key '***'"
            for n in (0, 1)
        ),
        "# n/0: model n: path is missing; add it,",
        "# or $ACME",
        f"# o/0: CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES='' GGML_VK_VISIBLE_DEVICES='' ACME='a b' "
        f"acme /o --port 0 --said 7 --state {state}/plugins/acme --level 3",
        "# e/0: attached to http://127.0.0.1:9001",
    ]
    assert "hunter" not in result.output
    assert not state.exists()
    assert result.stderr == "warning: power (line 11): not built yet, ignored\n"


def test_check_and_show_tell_what_engines_say_about_starts(file: Path) -> None:
    file.write_text(
        "mesh: {network: none}\ngpu: {vendor: nvidia}\nmodels:\n"
        "- {name: m, engine: acme, context: 2, path: /m, gpus: [0, 1]}\n- {name: n, engine: acme, context: 1}\n"
    )
    checked = run("config", "check", str(file))
    assert (checked.exit_code, checked.stdout[:3]) == (0, "ok:")
    assert checked.stderr.splitlines() == [
        "warning: m/0, m/1: 2 is a lot; take 1",
        "warning: m/0: (0,), 3",
        "warning: m/1: (1,), 3",
        "warning: n/0: model n: path is missing; add it,",
        "or $ACME",
    ]
    lines = run("config", "show", str(file)).stdout.splitlines()
    assert [line for line in lines if line.startswith("#   ")][:2] == ["#   2 is a lot; take 1", "#   (0,), 3"]


def test_what_show_prints_is_a_configuration_again(file: Path, tmp_path: Path) -> None:
    shown = run("config", "show", str(file)).stdout
    again = parse_config(shown, {})
    assert (again.node.name, again.mesh.network, again.health.interval) == ("box", "seeds", 5.0)
    assert again.models[0].block == {"level": 3, "token": "***"}
    (tmp_path / "again.yaml").write_text(shown)
    assert run("config", "check", str(tmp_path / "again.yaml")).exit_code == 0


def test_show_as_json(file: Path) -> None:
    shown = json.loads(run("config", "show", "--json", str(file)).stdout)
    assert (shown["file"], shown["config"]["api"]["port"]) == (str(file), 8086)
    first, *_, last = shown["backends"]
    assert (first["backend"], first["argv"][:2], first["env"]["MY_KEY"]) == ("m/0", ["acme", "/m"], "***")
    assert (last["attached"], last["argv"]) == ("http://127.0.0.1:9001", [])
    assert "hunter" not in json.dumps(shown)


def test_a_secret_of_the_environment_is_not_shown(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_API_KEY", "--level")
    shown = run("config", "show", str(file)).stdout
    assert "--level" not in shown
    assert "--said 7" in shown


def test_show_finds_the_file_of_the_usual_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert run("config", "show").exit_code == 1  # no discovery is installed, and no file says that none is needed
    place = tmp_path / "viiwork/viiwork.yaml"
    place.parent.mkdir()
    place.write_text("mesh: {network: none}\nnode: {name: found}\n")
    shown = run("config", "show").stdout
    assert shown.startswith(f"# {place}\n")
    assert yaml.safe_load(shown)["node"]["name"] == "found"


def test_show_tells_every_problem_of_a_bad_file(file: Path) -> None:
    file.write_text("api: {prt: 1}\nhealth: {interval: -1s}\nmesh: {network: none}\n")
    result = run("config", "show", str(file))
    assert (result.exit_code, result.stdout, len(result.stderr.splitlines())) == (1, "", 2)


def test_an_engine_that_cannot_be_made_is_told_in_its_place(file: Path) -> None:
    file.write_text(
        "mesh: {network: none}\nmodels: [{name: e, engine: external, context: 1, "
        "external: {urls: ['http://127.0.0.1:1'], api_key_env: NOT_THERE_KEY}}]\n"
    )
    result = run("config", "show", str(file))
    assert result.exit_code == 0
    assert "# e: model e: external.api_key_env: the environment variable NOT_THERE_KEY is not set" in result.stdout


def test_schema_has_the_blocks_of_installed_plugins() -> None:
    schema = json.loads(run("config", "schema").stdout)
    assert schema["$defs"]["ModelConfig"]["properties"]["engine"]["enum"] == ["acme", "external"]
    assert schema["$defs"]["engine.acme"]["properties"]["level"]["default"] == 3


def test_docs_are_written_to_a_file(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    assert run("config", "docs", str(page)).exit_code == 0
    assert "### models[].acme\n" in page.read_text()


@pytest.mark.parametrize("args", [["config", "schema"], ["config", "check", "FILE"]])
def test_looking_at_a_configuration_imports_no_server(args: list[str], file: Path) -> None:
    words = [str(file) if word == "FILE" else word for word in args]
    code = (
        f"import sys; from viiwork_core.cli.main import cli; cli({words!r}, standalone_mode=False);"
        "sys.exit(sorted({'quart', 'hypercorn', 'aiohttp'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(file.parent)!r}); {code}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
