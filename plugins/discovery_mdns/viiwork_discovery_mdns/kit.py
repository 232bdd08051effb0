"""What `viiwork plugin check` and the tests try the plugin with: real mDNS, on the loopback interface alone."""

from __future__ import annotations

from pathlib import Path

from viiwork_core import Card
from viiwork_core.testing.discovery_kit import DiscoveryCase, kit_context
from viiwork_discovery_mdns.discovery import MdnsDiscovery
from viiwork_discovery_mdns.interfaces import interfaces
from viiwork_discovery_mdns.options import MdnsOptions


def cases(folder: Path) -> list[DiscoveryCase]:
    """None where there is no loopback interface."""
    return [
        DiscoveryCase(
            MdnsDiscovery,
            MdnsOptions(interface=one.name),
            kit_context(folder),
            card=_card(1),
            peer=_card(2),
            unable=MdnsOptions(interface="no-such-interface"),
            found_within=60.0,
        )
        for one in interfaces()
        if one.loopback
    ][:1]


def _card(number: int) -> Card:
    """Of a node at 127.0.2.NUMBER."""
    return Card(f"kit-{number}", f"viiwork-kit-{number}", f"127.0.2.{number}:7946", "default")
