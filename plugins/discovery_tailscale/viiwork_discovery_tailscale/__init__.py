"""Finds viiwork nodes through Tailscale."""

from __future__ import annotations

from viiwork_core import Discovery, hookimpl
from viiwork_discovery_tailscale.discovery import TailscaleDiscovery

VIIWORK_API = (1, 1)
VIIWORK_KIT = "viiwork_discovery_tailscale.testing.kit:cases"


@hookimpl
def viiwork_register_discovery() -> type[Discovery]:
    return TailscaleDiscovery
