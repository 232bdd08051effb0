"""A tailscaled for each test that asks for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from viiwork_discovery_tailscale.testing.tailscaled import Tailscaled


@pytest.fixture
def tailscaled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tailscaled]:
    # A short name: a socket's path is 107 bytes at most.
    with Tailscaled.running(tmp_path_factory.mktemp("ts") / "s") as running:
        yield running
