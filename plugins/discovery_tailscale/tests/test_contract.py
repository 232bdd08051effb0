"""The contract's clauses, over a stand-in for tailscaled."""

from __future__ import annotations

from pathlib import Path

import pytest
from tailscaled import OWN, Tailscaled, machine, status

from viiwork_core import Card
from viiwork_core.testing.discovery_kit import DiscoveryCase, kit_context
from viiwork_core.testing.pytest_kits import DiscoveryKit
from viiwork_discovery_tailscale.discovery import TailscaleDiscovery
from viiwork_discovery_tailscale.options import TailscaleOptions


class TestTailscale(DiscoveryKit):
    @pytest.fixture
    def case(self, tailscaled: Tailscaled, tmp_path: Path) -> DiscoveryCase:
        tailscaled.says(status(machine("100.64.0.2"), machine("100.64.0.3", name="other")))
        return DiscoveryCase(
            TailscaleDiscovery,
            TailscaleOptions(socket=tailscaled.place),
            kit_context(tmp_path),
            card=Card("me", "viiwork-me", f"{OWN}:7946", "default"),
            there=("100.64.0.2:7946", "100.64.0.3:7946"),
            unable=TailscaleOptions(socket=tmp_path / "nobody"),
        )
