"""What the README and the example show works as it is written there."""

from __future__ import annotations

import importlib.util
import os
import random
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

import pytest
from pydantic import BaseModel

from viiwork_core import Candidate, Query
from viiwork_core.config.load import load_config, parse_config
from viiwork_core.config.schema import Config
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.options import resolve

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
TESTING = ROOT / "docs" / "plugins" / "testing.md"
PLUGINS = sorted(ROOT.glob("plugins/*/README.md"))
EXAMPLE = ROOT / "viiwork.example.yaml"
POLICY = "viiwork_long_prompts"


def blocks(language: str, page: str = README) -> list[str]:
    """A page's code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def block(language: str, having: str) -> str:
    (found,) = [text for text in blocks(language) if having in text]
    return found


def module(text: str, name: str, folder: Path) -> ModuleType:
    """A block as the module that a reader would make of it."""
    path = folder / f"{name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def keys(model: type[BaseModel]) -> set[str]:
    """Every key of a block and of the blocks below it."""
    found = set(model.model_fields)
    for field in model.model_fields.values():
        for below in re.findall(r"\w+Config", str(field.annotation)):
            found |= keys(getattr(sys.modules[model.__module__], below))
    return found


def test_the_example_is_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIIWORK_PLUGINS", raising=False)
    read = load_config(EXAMPLE, {})
    assert read.warnings == ()
    assert [model.engine.name for model in resolve(read, load_plugins({})).models] == ["llamacpp"]


def test_the_example_has_every_key() -> None:
    text = EXAMPLE.read_text()
    assert not {key for key in keys(Config) if not re.search(rf"[\s{{-]{key}:", text)}


@pytest.mark.parametrize("text", [text for text in blocks("yaml") if POLICY.removeprefix("viiwork_") not in text])
def test_a_configuration_of_the_readme_is_one(text: str) -> None:
    read = parse_config(text, {}, origin="README.md")
    assert read.warnings == ()
    assert resolve(read, load_plugins({})).models


def test_the_policy_of_the_readme_ranks(tmp_path: Path) -> None:
    policy = module(block("python", "Policy"), POLICY, tmp_path).viiwork_register_policy()
    made = policy(policy.Options(fast=["new"], tokens=1000))
    old, new, here = (Candidate(name, local=False, slots=4, free=2) for name in ("old", "new", "here"))

    def first(tokens: int, *places: Candidate) -> str:
        best: str = next(iter(made.rank(Query("m", None, tokens), places, random.Random(0))))
        return best

    assert first(5000, old, new, here) == "new"
    assert first(10, new, old) == "old"
    assert first(5000, new, Candidate("here", local=True, slots=4, free=1, held_tokens=900)) == "here"


def test_the_policy_of_the_readme_is_a_plugin(tmp_path: Path) -> None:
    """Installed without an installer: its metadata is put beside it, as pip would."""
    project = tomllib.loads(block("toml", "entry-points"))["project"]
    (tmp_path / f"{POLICY}.py").write_text(block("python", "Policy"))
    metadata = tmp_path / f"{POLICY}-{project['version']}.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n")
    points = "".join(f"{name} = {value}\n" for name, value in project["entry-points"]["viiwork"].items())
    (metadata / "entry_points.txt").write_text(f"[viiwork]\n{points}")
    config = tmp_path / "viiwork.yaml"
    config.write_text(block("yaml", "policy: long_prompts"))

    checked = viiwork("config", "check", str(config), PYTHONPATH=str(tmp_path))
    assert "policy: long_prompts" in checked


def viiwork(*args: str, **environ: str) -> str:
    """What the command prints; it must succeed."""
    env: Mapping[str, str] = {**os.environ, **environ}
    done = subprocess.run(
        [sys.executable, "-c", "from viiwork_core.cli.main import main; main()", *args],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_kit_of_the_page_runs(tmp_path: Path) -> None:
    (text,) = [text for text in blocks("python", TESTING.read_text()) if "check_engine" in text]
    module(text, "my_engine", tmp_path).test_my_engine_keeps_the_contract(tmp_path)


def test_every_target_of_the_makefile_is_told() -> None:
    told = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert [line.split()[0] for line in told.splitlines()] == phony.split()


def test_documents_link_to_what_exists() -> None:
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *PLUGINS]:
        links = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
        assert not [link for link in links if not (page.parent / link).exists()], page.name


def _spans(row: str) -> list[str]:
    """The code of a row's first column."""
    return re.findall(r"`([^`]+)`", row.split(" | ", maxsplit=1)[0])


def _said(span: str) -> list[str]:
    """What of a symptom the programs say word by word: all but the words in capitals, which stand for something."""
    parts = (part.strip(" :;") for part in re.split(r"\b[A-Z]{4,}\b|;", span))
    return [part for part in parts if len(part) > 3]


def test_the_symptoms_of_the_troubleshooting_page_are_those_that_the_code_tells() -> None:
    sources = [*ROOT.glob("viiwork_core/**/*.py"), *ROOT.glob("plugins/*/viiwork_*/**/*.py")]
    code = re.sub(r'"\s+f?"', "", "\n".join(path.read_text() for path in sources))  # texts in two pieces
    table = [line for line in (ROOT / "docs/troubleshooting.md").read_text().splitlines() if line.startswith("| ")]
    rows = [line for line in table if not line.startswith("| symptom")]
    assert len(rows) >= 25
    unknown = [part for row in rows for span in _spans(row) for part in _said(span) if part not in code]
    # Said by the machine or the engine.
    theirs = {
        "Exec format error",
        "Address already in use",
        "out of memory",
        "exceeds the available context size",
    }
    assert [part for part in unknown if part not in theirs] == []
