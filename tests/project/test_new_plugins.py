"""What `viiwork plugin new` writes is green before the first edit."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from viiwork_core.cli.main import cli
from viiwork_core.cli.scaffold import KINDS, write_plugin
from viiwork_core.errors import ConfigError

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
Install = Callable[[Path], Any]
CLAUSES = {"engine": 27, "policy": 11, "discovery": 10, "cache": 40, "listener": 6}


@pytest.mark.parametrize("kind", KINDS)
def test_it_keeps_its_contract(kind: str, tmp_path: Path, installed: Install) -> None:
    made = installed(write_plugin(kind, "my_own", tmp_path))
    told = made.viiwork("plugin", "check", "my_own")
    assert told.count(" pass  ") == CLAUSES[kind] + 1 + (2 if kind == "cache" else 1), told
    assert " fail  " not in told
    assert "not checked  " not in told


@pytest.mark.parametrize("kind", KINDS)
def test_its_own_tests_pass(kind: str, tmp_path: Path, installed: Install) -> None:
    made = installed(write_plugin(kind, "my_own", tmp_path))
    told = made.run("-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert f"{CLAUSES[kind] + (kind in ('policy', 'listener'))} passed" in told


@pytest.mark.parametrize("kind", KINDS)
def test_its_types_are_strict(kind: str, tmp_path: Path, installed: Install) -> None:
    made = installed(write_plugin(kind, "my_own", tmp_path))
    made.run("-m", "mypy", "--cache-dir", ROOT / ".mypy_cache" / "strangers")


@pytest.mark.parametrize("name", ["a", "my_own", "q2345678901234567890"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_clean_and_formatted(kind: str, name: str, tmp_path: Path) -> None:
    folder = write_plugin(kind, name, tmp_path)
    for words in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *words, folder], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("kind", KINDS)
def test_the_configuration_of_its_readme_is_one(kind: str, tmp_path: Path, installed: Install) -> None:
    made = installed(write_plugin(kind, "my_own", tmp_path))
    text = (made.folder / "README.md").read_text().partition("```yaml\n")[2].partition("```")[0]
    config = tmp_path / "viiwork.yaml"
    config.write_text(text if kind == "discovery" else f"mesh: {{network: none}}\n{text}")
    made.viiwork("config", "check", config)


def test_the_command_says_what_comes_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(cli, ["plugin", "new", "policy", "my_own"])
    assert told.exit_code == 0
    assert "viiwork plugin check my_own" in told.output
    assert (tmp_path / "my_own" / "viiwork_my_own" / "py.typed").is_file()
    again = CliRunner().invoke(cli, ["plugin", "new", "policy", "my_own"])
    assert again.exit_code == 1
    assert "my_own exists already" in again.output


@pytest.mark.parametrize(("word", "kind"), [("routing", "policy"), ("cache_transfer", "cache")])
def test_a_kind_has_the_words_of_the_configuration_and_the_hooks_too(
    word: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(cli, ["plugin", "new", word, "my_own"]).exit_code == 0
    assert (tmp_path / "my_own" / "README.md").read_text() == (
        write_plugin(kind, "my_own", tmp_path / "other") / "README.md"
    ).read_text()


@pytest.mark.parametrize("kind", KINDS)
def test_its_readme_fits_the_pip_of_a_fresh_environment(kind: str, tmp_path: Path) -> None:
    """That of Python 3.11 knows no --group."""
    before, group, _ = (write_plugin(kind, "my_own", tmp_path) / "README.md").read_text().partition("--group")
    assert not group or "pip install --upgrade pip" in before


def test_each_file_says_the_name_it_was_given(tmp_path: Path) -> None:
    for kind in KINDS:
        folder = write_plugin(kind, f"of_{kind}", tmp_path)
        for file in [one for one in folder.rglob("*") if one.is_file() and one.name != "py.typed"]:
            text = file.read_text()
            assert f"of_{kind}" in text, file
            assert "$" not in text, file


@pytest.mark.parametrize("name", ["", "Foo", "my-own", "1st", "a" * 21, "class", "../up", "a__b", "_a", "a b"])
def test_other_names_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        write_plugin("policy", name, tmp_path / "new")
    assert "lowercase" in caught.value.remedy
    assert not (tmp_path / "new").exists()


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("dear")
    with pytest.raises(ConfigError, match="mine exists already"):
        write_plugin("policy", "mine", tmp_path)
    assert [one.name for one in (tmp_path / "mine").iterdir()] == ["notes"]


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run([str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_three_commands_work_in_a_clean_environment(tmp_path: Path) -> None:
    """viiwork plugin new engine foo && pip install -e foo && viiwork plugin check foo"""
    pytest.importorskip("hatchling", reason="hatchling is not installed: no wheel can be built")
    dist, venv = tmp_path / "dist", tmp_path / "venv"
    pip = [sys.executable, "-m", "pip"]
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", dist, ROOT, cwd=tmp_path)
    run(sys.executable, "-m", "venv", venv, cwd=tmp_path)
    there, pins = venv / "bin", ["--constraint", ROOT / "constraints.txt"]
    run(there / "pip", "install", "--quiet", *pins, *dist.glob("*.whl"), "hatchling", "editables", cwd=tmp_path)

    run(there / "viiwork", "plugin", "new", "engine", "foo", cwd=tmp_path)
    offline = ["--quiet", "--no-index", "--no-build-isolation"]
    run(there / "pip", "install", *offline, "-e", "foo", cwd=tmp_path)
    told = run(there / "viiwork", "plugin", "check", "foo", cwd=tmp_path)
    assert "27 pass, 0 fail, 0 not checked" in told
    listed = run(there / "viiwork", "plugin", "list", cwd=tmp_path)
    assert [line.split()[:3] for line in listed.splitlines() if "foo" in line] == [["engine", "foo", "viiwork-foo"]]
