"""A tailscaled for each test that asks for one."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from tailscaled import Tailscaled  # found by the line above


@pytest.fixture
def tailscaled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tailscaled]:
    # A short name: a socket's path is 107 bytes at most.
    with Tailscaled.running(tmp_path_factory.mktemp("ts") / "s") as running:
        yield running
