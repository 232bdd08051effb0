"""The contract's clauses, over real mDNS on loopback."""

from __future__ import annotations

from pathlib import Path

import pytest

from viiwork_core import Card
from viiwork_core.testing.discovery_kit import DiscoveryCase, kit_context
from viiwork_core.testing.pytest_kits import DiscoveryKit
from viiwork_discovery_mdns.discovery import MdnsDiscovery
from viiwork_discovery_mdns.interfaces import interfaces
from viiwork_discovery_mdns.options import MdnsOptions

LOOPBACK = next((one.name for one in interfaces() if one.loopback), "")


def card(number: int) -> Card:
    """Of a node at 127.0.2.NUMBER."""
    return Card(f"kit-{number}", f"viiwork-kit-{number}", f"127.0.2.{number}:7946", "default")


class TestMdns(DiscoveryKit):
    @pytest.fixture
    def case(self, tmp_path: Path) -> DiscoveryCase:
        return DiscoveryCase(
            MdnsDiscovery,
            MdnsOptions(interface=LOOPBACK),
            kit_context(tmp_path),
            card=card(1),
            peer=card(2),
            unable=MdnsOptions(interface="no-such-interface"),
            found_within=60.0,
        )
