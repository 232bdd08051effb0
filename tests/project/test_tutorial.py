"""The tutorial's code, run as it stands on the page."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from viiwork_core import Candidate, Query

PAGE = (Path(__file__).parents[2] / "docs" / "plugins" / "tutorial.md").read_text()
Install = Callable[[Path], Any]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


FIRST, POLICY, TESTS = blocks("python")
(PROJECT,) = blocks("toml")
(CONFIG,) = blocks("yaml")


def module(text: str, folder: Path) -> ModuleType:
    path = folder / "viiwork_spare.py"
    path.write_text(text)
    spec = spec_from_file_location("viiwork_spare_of_the_page", path)
    assert spec is not None
    assert spec.loader is not None
    made = module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def ranked(policy: Any, *places: Candidate) -> list[str]:
    return list(policy.rank(Query("m", None, 900), places, random.Random(0)))


def host(name: str, free: int = 2, held: int | None = None) -> Candidate:
    return Candidate(name, local=False, slots=4, free=free, held_tokens=held)


def test_the_first_step_ranks(tmp_path: Path) -> None:
    spare = module(FIRST, tmp_path).viiwork_register_policy()
    assert ranked(spare(spare.Options()), host("study"), host("cellar"), host("attic")) == ["attic", "cellar", "study"]


def test_the_second_step_ranks_as_the_text_says(tmp_path: Path) -> None:
    spare = module(POLICY, tmp_path).viiwork_register_policy()
    policy = spare(spare.Options(hosts={"study"}))
    assert ranked(policy, host("study", held=900), host("cellar"), host("attic", free=1)) == [
        "cellar",
        "attic",
        "study",
    ]
    assert ranked(policy, host("cellar", free=4), host("attic", free=1, held=900)) == ["attic", "cellar"]


def test_it_has_twenty_lines() -> None:
    lines = [line for line in POLICY.splitlines() if line.strip()]
    assert len(lines) <= 20


def test_the_steps_that_the_text_swaps(tmp_path: Path) -> None:
    swapped = POLICY.replace(
        "(place.id in self.options.hosts, not place.held_tokens,",
        "(not place.held_tokens, place.id in self.options.hosts,",
    )
    assert swapped != POLICY
    spare = module(swapped, tmp_path).viiwork_register_policy()
    assert ranked(spare(spare.Options(hosts={"study"})), host("study", held=900), host("attic")) == ["study", "attic"]


@pytest.fixture
def spare(tmp_path: Path, installed: Install) -> Any:
    """The page's files, installed."""
    folder = tmp_path / "spare"
    folder.mkdir()
    files = {"viiwork_spare.py": POLICY, "test_spare.py": TESTS, "pyproject.toml": PROJECT, "viiwork.yaml": CONFIG}
    for name, text in files.items():
        (folder / name).write_text(text)
    return installed(folder)


def test_the_commands_of_the_page_work(spare: Any) -> None:
    assert "11 pass, 0 fail, 0 not checked" in spare.viiwork("plugin", "check", "spare")
    assert "policy: spare" in spare.viiwork("config", "check", "viiwork.yaml")
    assert re.search(r"^policy +spare +viiwork-spare +0\.1 ", spare.viiwork("plugin", "list"), re.MULTILINE)


def test_the_tests_of_the_page_pass(spare: Any) -> None:
    assert "12 passed" in spare.run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_spare.py")
