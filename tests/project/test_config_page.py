"""docs/config.md is what `make docs` would write."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from viiwork_core.cli.main import cli

ROOT = Path(__file__).parents[2]


def chosen() -> str:
    """The plugins whose blocks the page tells."""
    (names,) = re.findall(
        r"VIIWORK_PLUGINS=(\S+) \S+ config docs docs/config.md$", (ROOT / "Makefile").read_text(), re.M
    )
    return str(names)


def test_the_page_tells_the_plugins_of_this_repository() -> None:
    projects = [tomllib.loads(path.read_text())["project"] for path in ROOT.glob("plugins/*/pyproject.toml")]
    assert set(chosen().split(",")) == {name for project in projects for name in project["entry-points"]["viiwork"]}


def test_the_page_is_up_to_date(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIIWORK_PLUGINS", chosen())
    result = CliRunner().invoke(cli, ["config", "docs", str(tmp_path / "config.md")])
    assert result.exit_code == 0, result.output
    written = (tmp_path / "config.md").read_text()
    assert (ROOT / "docs/config.md").read_text() == written, "the schema has changed: run `make docs`"
