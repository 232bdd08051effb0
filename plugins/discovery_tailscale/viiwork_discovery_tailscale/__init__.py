"""Finds viiwork nodes through Tailscale."""

from __future__ import annotations

from viiwork_core import Discovery, hookimpl
from viiwork_discovery_tailscale.discovery import TailscaleDiscovery


@hookimpl
def viiwork_register_discovery() -> type[Discovery]:
    return TailscaleDiscovery
