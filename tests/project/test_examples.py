"""The examples are whole distributions: their own tests, types and rules hold, and the contract's clauses do."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
POLICY = ROOT / "examples" / "policy_cheapest_power"
Install = Callable[[Path], Any]


@pytest.fixture
def policy(tmp_path: Path, installed: Install) -> Any:
    """A copy, so that nothing is left beside the original."""
    ignored = shutil.ignore_patterns("__pycache__", ".*_cache")
    return installed(Path(shutil.copytree(POLICY, tmp_path / "policy", ignore=ignored)))


def test_its_own_tests_pass(policy: Any) -> None:
    told = policy.run("-m", "pytest", "-q", "-p", "no:cacheprovider")
    assert re.search(r"^\d+ passed", told, re.MULTILINE)


def test_it_keeps_the_contract(policy: Any) -> None:
    assert "11 pass, 0 fail, 0 not checked" in policy.viiwork("plugin", "check", "cheapest_power")


def test_its_types_are_strict(policy: Any) -> None:
    policy.run("-m", "mypy", "--cache-dir", ROOT / ".mypy_cache" / "strangers")


def test_it_is_clean_and_formatted() -> None:
    for words in (["check", "--no-cache"], ["format", "--check", "--no-cache"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *words, POLICY], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_the_configuration_of_its_readme_is_one(policy: Any, tmp_path: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```", (POLICY / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    config = tmp_path / "viiwork.yaml"
    config.write_text(text)
    assert "policy: cheapest_power" in policy.viiwork("config", "check", config)


def test_what_is_wrong_in_its_block_is_told(policy: Any, tmp_path: Path) -> None:
    config = tmp_path / "viiwork.yaml"
    block = "{watts: {attic: -1}}"
    config.write_text(f"mesh: {{network: none}}\nrouting: {{policy: cheapest_power, cheapest_power: {block}}}\n")
    assert "routing.cheapest_power.watts" in policy.viiwork("config", "check", config, status=1)
