"""The six distributions: what they declare, and what a stranger gets who installs their wheels."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import pytest

from viiwork_core.registry.entry_points import load_plugins

ROOT = Path(__file__).parents[2]
PROJECTS = [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]
OFFERS = {
    ("policy", "cache_aware"),
    ("policy", "fastest"),
    ("policy", "least_busy"),
    ("policy", "round_robin"),
    ("discovery", "seeds"),
    ("discovery", "mdns"),
    ("discovery", "tailscale"),
    *((kind, engine) for kind in ("engine", "cache") for engine in ("llamacpp", "mlx", "strata")),
}


def declared() -> list[dict[str, Any]]:
    return [tomllib.loads(path.read_text())["project"] for path in PROJECTS]


def test_the_six_carry_one_version() -> None:
    projects = declared()
    assert len(projects) == 6
    assert {project["version"] for project in projects} == {version("viiwork")}


def test_the_six_say_the_same_of_themselves() -> None:
    for path, project in zip(PROJECTS, declared(), strict=True):
        assert (path.parent / project["readme"]).is_file()
        assert (project["license"], project["requires-python"]) == ("MIT", ">=3.11"), project["name"]


def test_what_is_declared_is_installed() -> None:
    wanted = {(name, value) for project in declared() for name, value in project["entry-points"]["viiwork"].items()}
    assert len(wanted) == 6
    assert wanted <= {(point.name, point.value) for point in entry_points(group="viiwork")}


def test_everything_loads() -> None:
    registry = load_plugins({})
    assert not registry.failed
    assert {offer for record in registry.records for offer in record.provides} >= OFFERS


def run(*command: object) -> str:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_core_with_one_engine_installs_from_wheels(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed: no wheels to install")
    pip = [sys.executable, "-m", "pip"]
    dist, venv = tmp_path / "dist", tmp_path / "venv"
    folders = [path.parent for path in PROJECTS]
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", dist, *folders)
    assert len(list(dist.glob("*.whl"))) == 6

    run(sys.executable, "-m", "venv", venv)
    pins = ["--constraint", ROOT / "constraints.txt"]
    run(venv / "bin" / "pip", "install", "--quiet", *pins, "--find-links", dist, "viiwork[strata]")
    rows = json.loads(run(venv / "bin" / "viiwork", "plugin", "list", "--json"))
    assert {row["distribution"] for row in rows} == {"viiwork", "viiwork-strata"}
    assert {row["state"] for row in rows} == {"loaded"}
    assert ("engine", "strata") in {(row["kind"], row["name"]) for row in rows}
    pages = "from viiwork_core.web.pages import STATIC, Files; assert list(STATIC.parent.glob('templates/*.html'))"
    assert int(run(venv / "bin" / "python", "-c", f"{pages}; print(len(Files.read().contents))")) > 5
