"""What `viiwork plugin check` and the tests try the plugin with: a stand-in for tailscaled."""

from __future__ import annotations

import threading
from pathlib import Path

from viiwork_core import Card
from viiwork_core.testing.discovery_kit import DiscoveryCase, kit_context
from viiwork_discovery_tailscale.discovery import TailscaleDiscovery
from viiwork_discovery_tailscale.options import TailscaleOptions
from viiwork_discovery_tailscale.testing.tailscaled import OWN, Tailscaled, machine, status


def cases(folder: Path) -> list[DiscoveryCase]:
    """With a stand-in that runs as long as this process."""
    tailscaled = Tailscaled(folder / "s")
    threading.Thread(target=tailscaled.serve_forever, daemon=True).start()
    return [case(tailscaled, folder)]


def case(tailscaled: Tailscaled, folder: Path) -> DiscoveryCase:
    """Two machines on the tailnet."""
    tailscaled.says(status(machine("100.64.0.2"), machine("100.64.0.3", name="other")))
    return DiscoveryCase(
        TailscaleDiscovery,
        TailscaleOptions(socket=tailscaled.place),
        kit_context(folder),
        card=Card("me", "viiwork-me", f"{OWN}:7946", "default"),
        there=("100.64.0.2:7946", "100.64.0.3:7946"),
        unable=TailscaleOptions(socket=folder / "nobody"),
    )
