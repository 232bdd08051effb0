"""The contract's clauses, over a stand-in for tailscaled."""

from __future__ import annotations

from pathlib import Path

import pytest

from viiwork_core.testing.discovery_kit import DiscoveryCase
from viiwork_core.testing.pytest_kits import DiscoveryKit
from viiwork_discovery_tailscale.testing import kit
from viiwork_discovery_tailscale.testing.tailscaled import Tailscaled


class TestTailscale(DiscoveryKit):
    @pytest.fixture
    def case(self, tailscaled: Tailscaled, tmp_path: Path) -> DiscoveryCase:
        return kit.case(tailscaled, tmp_path)
