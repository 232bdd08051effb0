"""The contract's clauses, over real mDNS on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from viiwork_core.testing.discovery_kit import DiscoveryCase
from viiwork_core.testing.pytest_kits import DiscoveryKit
from viiwork_discovery_mdns.kit import cases


class TestMdns(DiscoveryKit):
    @pytest.fixture
    def case(self, tmp_path: Path) -> DiscoveryCase:
        (case,) = cases(tmp_path)
        return case
