"""The tutorial's plugin: what stands on the page is the example, works, and is a stranger's to the core."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from viiwork_core.config.load import parse_config
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.options import resolve

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "plugins" / "tutorial-engine.md"
EXAMPLE = ROOT / "examples" / "engine_vllm"
README = EXAMPLE / "README.md"
NAME = "viiwork_vllm"
COMMAND = "from viiwork_core.cli.main import main; main()"


def shown() -> dict[str, str]:
    """The files of the page, by name."""
    return dict(re.findall(r"^`([\w./]+)`:\n\n```\w+\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL))


def blocks(language: str, page: Path) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Where the page's plugin is installed: its blocks as files, and its metadata beside them, as pip would put it."""
    site = tmp_path / "site"
    for name, text in shown().items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    project = tomllib.loads(shown()["pyproject.toml"])["project"]
    metadata = site / f"{NAME}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    points = "".join(f"{name} = {value}\n" for name, value in project["entry-points"]["viiwork"].items())
    (metadata / "entry_points.txt").write_text(f"[viiwork]\n{points}")
    return site


def run(*command: object, **environ: str) -> str:
    done = subprocess.run(
        [str(part) for part in command], env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    return done.stdout


def test_the_page_shows_the_files_of_the_example() -> None:
    files = [*EXAMPLE.glob("*.toml"), *EXAMPLE.glob(f"{NAME}/*.py"), EXAMPLE / "tests" / "test_contract.py"]
    wanted = {str(path.relative_to(EXAMPLE)): path.read_text() for path in files if path.name != "ruff.toml"}
    assert shown() == wanted, "docs/plugins/tutorial-engine.md and examples/engine_vllm differ"
    assert (EXAMPLE / NAME / "py.typed").exists()


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "names", [("launch", "replies", "contract"), pytest.param(("node",), marks=pytest.mark.slow)], ids="-".join
)
def test_the_plugin_of_the_page_passes_the_example_s_tests(names: tuple[str, ...], site: Path) -> None:
    shutil.copytree(EXAMPLE / "tests", site / "tests", dirs_exist_ok=True)
    assert (site / "tests" / "test_contract.py").read_text() == shown()["tests/test_contract.py"]
    pytest_ = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", ROOT / "pyproject.toml")
    files = [site / "tests" / f"test_{name}.py" for name in names]
    told = run(*pytest_, "--rootdir", site, *files, PYTHONPATH=str(site))
    assert re.search(r"^\d+ passed in ", told, re.MULTILINE), told


@pytest.mark.parametrize("page", [PAGE, README])
def test_its_configuration_is_one(page: Path, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(site)
    try:
        (text,) = blocks("yaml", page)
        (model,) = resolve(parse_config(text, {}, origin=page.name), load_plugins({})).models
        assert (model.engine.name, model.config.gpus_per_backend) == ("vllm", 2)
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == NAME]:
            del sys.modules[name]


def test_the_core_does_not_know_it() -> None:
    core = [path for path in (ROOT / "viiwork_core").rglob("*.py") if "viiwork_vllm" in path.read_text()]
    assert core == []
    imported = re.findall(r"^(?:from|import) (viiwork_core[\w.]*)", "\n".join(shown().values()), re.MULTILINE)
    assert {name for name in imported if not name.startswith("viiwork_core.testing")} == {"viiwork_core"}


def test_all_of_the_example_s_tests_run() -> None:
    told = {path.name for path in (EXAMPLE / "tests").glob("test_*.py")}
    assert told == {f"test_{name}.py" for name in ("launch", "replies", "contract", "node")}


def test_its_pages_link_to_what_exists() -> None:
    for page in (PAGE, README, EXAMPLE / "tests" / "recordings" / "README.md"):
        links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
        assert not [link for link in links if not (page.parent / link).exists()], page.name


@pytest.mark.slow
def test_pip_installs_it(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed: no wheel can be built")
    venv, project = tmp_path / "venv", tmp_path / "project"
    shutil.copytree(EXAMPLE, project)
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    (site,) = venv.glob("lib/python*/site-packages")
    (site / "outer.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    python = venv / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-build-isolation", project)
    (line,) = [one for one in run(python, "-c", COMMAND, "plugin", "list").splitlines() if "viiwork-vllm" in one]
    assert {"engine", "vllm", "0.1.0", "loaded"} <= set(line.split())


@pytest.mark.slow
def test_its_types_are_right() -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("mypy is not installed")
    run(sys.executable, "-m", "mypy", "--strict", "-p", NAME, MYPYPATH=str(EXAMPLE))
