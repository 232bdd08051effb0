"""Finds viiwork nodes by mDNS."""

from __future__ import annotations

from viiwork_core import Discovery, hookimpl
from viiwork_discovery_mdns.discovery import MdnsDiscovery

VIIWORK_API = (1, 1)
VIIWORK_KIT = "viiwork_discovery_mdns.kit:cases"


@hookimpl
def viiwork_register_discovery() -> type[Discovery]:
    return MdnsDiscovery
