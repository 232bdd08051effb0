"""Finds viiwork nodes by mDNS."""

from __future__ import annotations

from viiwork_core import Discovery, hookimpl
from viiwork_discovery_mdns.discovery import MdnsDiscovery


@hookimpl
def viiwork_register_discovery() -> type[Discovery]:
    return MdnsDiscovery
