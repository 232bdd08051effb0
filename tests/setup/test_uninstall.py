"""viiwork uninstall: the node is stopped, what was written goes, and nothing else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from machine import VIIWORK, SetUp

from viiwork_core.setup.acceptance import wait_until_loaded
from viiwork_core.setup.installation import Installation
from viiwork_core.setup.locations import Locations


def uninstall(home: Path, base: Path, *options: str) -> tuple[int, str]:
    """Exit status and all that was said."""
    environ = {"PATH": os.environ["PATH"], "HOME": str(home)}
    command = [VIIWORK, "uninstall", "--root", base, *options]
    done = subprocess.run(
        command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    return done.returncode, done.stdout.decode()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return tmp_path / "machine"


@pytest.fixture
def installed(set_up: SetUp) -> Locations:
    return set_up(None).subject.locations


def test_the_node_is_stopped_and_its_files_go_but_nothing_else(set_up: SetUp, home: Path, base: Path) -> None:
    service = set_up(None)
    places = service.subject.locations
    service.start(list[str]().append)
    wait_until_loaded(service, list[str]().append, deadline_s=60)
    mine = places.config.with_name("notes")
    mine.write_text("mine")
    status, said = uninstall(home, base, "--yes")
    assert status == 0, said
    assert not service.is_active()
    assert not places.config.exists()
    assert not places.environment.exists()
    assert not places.records.exists()
    assert mine.read_text() == "mine"
    assert places.state.is_dir()
    for line in (f"remove   {places.config}", "$ kill ", f"kept     {places.state} (what the node remembers)"):
        assert line in said
    assert "models and the program itself stay" in said


def test_folders_that_were_made_go_too(installed: Locations, home: Path, base: Path) -> None:
    assert installed.config.parent.exists()
    assert uninstall(home, base, "--yes")[0] == 0
    assert not installed.config.parent.exists()


def test_a_dry_run_changes_nothing(installed: Locations, home: Path, base: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in base.rglob("*") if path.is_file()}
    status, said = uninstall(home, base, "--dry-run")
    assert (status, said.splitlines()[-1]) == (0, "nothing was changed")
    assert f"remove   {installed.config}" in said
    assert {path: path.stat().st_mtime_ns for path in base.rglob("*") if path.is_file()} == before


def test_without_a_terminal_and_yes_nothing_is_done(installed: Locations, home: Path, base: Path) -> None:
    status, said = uninstall(home, base)
    assert status == 1
    assert "--yes" in said
    assert installed.config.exists()


def test_a_changed_file_is_kept_and_told_until_it_is_forced(installed: Locations, home: Path, base: Path) -> None:
    installed.config.write_text("node: {name: by-hand}\n")
    status, said = uninstall(home, base, "--yes")
    assert status == 0
    assert f"keep     {installed.config} (changed since; --force removes it)" in said
    assert installed.config.read_text() == "node: {name: by-hand}\n"
    assert not installed.environment.exists()
    # It is still known, so that it can be removed later.
    status, said = uninstall(home, base, "--yes", "--force")
    assert status == 0, said
    assert not installed.config.exists()
    assert not installed.records.exists()


def test_what_was_there_before_is_kept_as_it_is(base: Path, home: Path, set_up: SetUp) -> None:
    places = Locations.here({"HOME": str(home)}, base=base)
    places.config.parent.mkdir(parents=True)
    places.config.write_text("# mine\n")
    set_up(None)
    status, said = uninstall(home, base, "--yes")
    assert status == 0
    backup = places.config.with_name("viiwork.yaml.backup")
    assert backup.read_text() == "# mine\n"
    assert f"kept     {backup} (what was there before)" in said
    assert not places.config.exists()


def test_where_nothing_was_installed_that_is_said(home: Path, base: Path) -> None:
    status, said = uninstall(home, base, "--yes")
    assert status == 1
    assert "has installed nothing here" in said
    assert not base.exists()


def test_not_while_a_wizard_runs(installed: Locations, home: Path, base: Path) -> None:
    with Installation.held(installed):
        status, said = uninstall(home, base, "--yes")
    assert status == 1
    assert "another `viiwork init` or `viiwork uninstall` runs" in said
    assert installed.config.exists()


def test_what_goes_away_meanwhile_is_no_trouble(installed: Locations, home: Path, base: Path) -> None:
    installed.environment.unlink()
    status, said = uninstall(home, base, "--yes")
    assert status == 0, said
    assert not installed.records.exists()
