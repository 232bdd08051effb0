"""Where `make` installs the clients from npm."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

FOLDER = Path(sys.prefix) / "node"
"""Beside the packages of this Python, so that it goes with them."""


def installed(package: str) -> Path:
    """The folder with node_modules; skips where the package, or Node itself, is missing."""
    if shutil.which("node") is None:
        pytest.skip("node is not on PATH")
    if not (FOLDER / "node_modules" / package).exists():
        pytest.skip(f"{package} is not in {FOLDER}: `make test` installs it where npm is on PATH")
    return FOLDER
