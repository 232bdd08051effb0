"""Distributions that count as installed for the processes that a test starts, without an installer."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "http"))
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2]))  # for what tests and the demonstration share

Run = Callable[..., str]
COMMAND = "from viiwork_core.cli.main import main; main()"


class Installed:
    """A distribution's folder on PYTHONPATH, its metadata beside it as pip would put it."""

    def __init__(self, folder: Path, site: Path) -> None:
        self.folder = folder
        self.project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
        self.environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(folder), str(site)))}
        name, version = self.project["name"], self.project["version"]
        metadata = site / f"{name.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        points = "".join(f"{key} = {value}\n" for key, value in self.project["entry-points"]["viiwork"].items())
        (metadata / "entry_points.txt").write_text(f"[viiwork]\n{points}")

    def run(self, *command: str | Path, status: int = 0) -> str:
        """What `python COMMAND` prints, started in the distribution's folder; it must end with that status."""
        done = subprocess.run(
            [sys.executable, *command], cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False
        )
        assert done.returncode == status, done.stdout[-4000:] + done.stderr[-4000:]
        return done.stdout + done.stderr

    def viiwork(self, *words: str | Path, status: int = 0) -> str:
        return self.run("-c", COMMAND, *words, status=status)


@pytest.fixture
def installed(tmp_path: Path) -> Callable[[Path], Installed]:
    """installed(folder) makes the distribution in `folder` count as installed."""
    return lambda folder: Installed(folder, tmp_path / "site")
