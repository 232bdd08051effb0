"""A plugin that somebody else wrote: in a folder of its own, installed with pip, chosen in the configuration."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest

from viiwork_core.registry.entry_points import load_plugins

T = TypeVar("T")

PROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "my-policy"
version = "0.7"
dependencies = ["viiwork"]

[project.entry-points.viiwork]
mine = "my_policy"

[tool.hatch.build.targets.wheel]
only-include = ["my_policy.py"]
"""
POLICY = """
from viiwork_core import PluginOptions, Policy, hookimpl


class Options(PluginOptions):
    last: str


class Favourite(Policy):
    name = "favourite"
    Options = Options

    def rank(self, query, candidates, rng):
        return sorted((one.id for one in candidates), key=lambda id_: (id_ == self.options.last, id_))


@hookimpl
def viiwork_register_policy():
    return Favourite
"""
COMMAND = "from viiwork_core.cli.main import main; main()"


def run(*command: object, **environ: str) -> str:
    env = {**os.environ, **environ}
    done = subprocess.run(
        [str(part) for part in command], env=env, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def until(holds: Callable[[], T | None], what: str, within: float = 30.0) -> T:
    """What `holds` returns once it is true."""
    deadline = time.monotonic() + within
    while not (found := holds()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {within:g} s: {what}")
        time.sleep(0.02)
    return found


def rows(python: object, **environ: str) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(run(python, "-c", COMMAND, "plugin", "list", "--json", **environ))
    return found


def test_the_chosen_set_is_shown() -> None:
    listed = rows(sys.executable, VIIWORK_PLUGINS="llamacpp")
    states = {row["distribution"]: row["state"] for row in listed}
    assert {name for name, state in states.items() if state == "loaded"} == {"viiwork", "viiwork-llamacpp"}
    assert set(states.values()) == {"loaded", "not chosen"}
    assert {"viiwork-strata", "viiwork-mlx"} <= states.keys()
    assert ("engine", "llamacpp") in {(row["kind"], row["name"]) for row in listed}
    assert {row["reason"] for row in listed if row["state"] == "not chosen"} == {"not named in VIIWORK_PLUGINS"}
    table = run(sys.executable, "-c", COMMAND, "plugin", "list", VIIWORK_PLUGINS="llamacpp")
    assert table.count("not chosen") == len([row for row in listed if row["state"] == "not chosen"])


def test_a_blocked_plugin_is_shown_as_such() -> None:
    listed = rows(sys.executable, VIIWORK_PLUGINS="llamacpp,mlx", VIIWORK_BLOCK="mlx")
    assert {row["state"] for row in listed if row["distribution"] == "viiwork-mlx"} == {"blocked"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of a fresh environment with the plugin in it. Its core is the one that is tested here."""
    pytest.importorskip("hatchling", reason="hatchling is not installed: no wheel can be built")
    folder = tmp_path_factory.mktemp("stranger")
    project, venv = folder / "my-policy", folder / "venv"
    project.mkdir()
    (project / "pyproject.toml").write_text(PROJECT)
    (project / "my_policy.py").write_text(POLICY)
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    made = venv / "bin" / "python"
    (site,) = venv.glob("lib/python*/site-packages")
    # Also what the outer environment's own .pth files lead to, such as editable installations.
    (site / "outer.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    run(made, "-m", "pip", "install", "--quiet", "--no-index", "--no-build-isolation", project)
    return made


@contextmanager
def fake_engine() -> Iterator[str]:
    """The URL of a server that runs already."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-m", "viiwork_core.testing.fake_engine", "--port", str(port)])
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@contextmanager
def node(python: Path, folder: Path, routing: dict[str, Any], urls: list[str]) -> Iterator[str]:
    """The address of a node whose one model has a backend for each URL, all of them healthy."""
    folder.mkdir()
    config = {
        "node": {"name": "one", "state_dir": str(folder / "state")},
        "api": {"port": 0},
        "mesh": {"network": "none"},
        "health": {"interval": "0.2s"},
        "routing": routing,
        "models": [{"name": "m", "engine": "external", "context": 4096, "parallel": 2, "external": {"urls": urls}}],
    }
    (folder / "viiwork.yaml").write_text(json.dumps(config))
    command: list[str | Path] = [python, "-c", COMMAND, "serve", "--config", folder / "viiwork.yaml"]
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        identity = folder / "state" / "node.json"

        def healthy() -> str | None:
            assert process.poll() is None
            try:
                api = str(json.loads(identity.read_text())["api"])
                told = asked(f"{api}/health")
            except OSError:
                return None
            return api if told["backends_healthy"] == len(urls) else None

        yield until(healthy, "all backends are healthy")
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()
            process.wait()


def asked(url: str) -> Any:
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=10) as answer:
        return json.load(answer)


def backend_of_a_chat(api: str) -> str:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 2})
    request = urllib.request.Request(f"{api}/v1/chat/completions", body.encode())
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=20) as answer:
        assert json.load(answer)["choices"]
        return str(answer.headers["X-Viiwork-Backend"])


@pytest.mark.slow
def test_pip_installs_it_and_the_list_shows_it(python: Path) -> None:
    (mine,) = [row for row in rows(python) if row["distribution"] == "my-policy"]
    assert (mine["kind"], mine["name"], mine["version"], mine["state"]) == ("policy", "favourite", "0.7", "loaded")
    assert not [record for record in load_plugins({}).records if record.distribution == "my-policy"]


@pytest.mark.slow
@pytest.mark.parametrize(("last", "first"), [("m/0", "m/1"), ("m/1", "m/0")])
def test_it_changes_which_backend_is_chosen(python: Path, tmp_path: Path, last: str, first: str) -> None:
    routing = {"policy": "favourite", "favourite": {"last": last}}
    with fake_engine() as one, fake_engine() as other, node(python, tmp_path / "node", routing, [one, other]) as api:
        assert {backend_of_a_chat(api) for _ in range(12)} == {first}


@pytest.mark.slow
def test_without_it_both_backends_are_used(python: Path, tmp_path: Path) -> None:
    with fake_engine() as one, fake_engine() as other, node(python, tmp_path / "node", {}, [one, other]) as api:
        assert {backend_of_a_chat(api) for _ in range(40)} == {"m/0", "m/1"}
