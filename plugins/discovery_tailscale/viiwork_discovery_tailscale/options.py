"""What the tailscale block of mesh takes."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Literal

from pydantic import field_validator

from viiwork_core import PluginOptions

DEFAULT_SOCKET = Path("/var/run/tailscale/tailscaled.sock")

RANGES = ("100.64.0.0/10", "fd7a:115c:a1e0::/48")

Network = IPv4Network | IPv6Network


class TailscaleOptions(PluginOptions):
    """Looking for nodes among the machines of the tailnet that this one is in."""

    enabled: bool | Literal["auto"] = "auto"
    """auto: on when mesh.network is tailnet, or unset, or when this block is under the name tailscale. true: on
    beside any other network. false: off."""

    socket: Path = DEFAULT_SOCKET
    """Socket of tailscaled. With the default, a Mac is also asked at /var/run/tailscaled.socket and by the command
    `tailscale`, on PATH or in Tailscale.app."""

    tailnet: str = ""
    """Name or MagicDNS suffix of the tailnet that is meant, such as example.ts.net. While this machine is in another
    one, nobody is looked for. Empty: whichever it is in."""

    tags: tuple[str, ...] = ()
    """Only machines with one of these tags are looked at, such as tag:gpu. Empty: all. This saves connections and
    protects nothing: the secret of the mesh says who belongs to it."""

    ranges: tuple[str, ...] = RANGES
    """Networks that addresses must be in to count. For control servers that give out others than Tailscale's."""

    @field_validator("tags")
    @classmethod
    def _check_tags(cls, tags: tuple[str, ...]) -> tuple[str, ...]:
        for tag in tags:
            if not tag.startswith("tag:"):
                raise ValueError(f"{tag!r} is no tag; tags begin with tag:")
        return tags

    @field_validator("ranges")
    @classmethod
    def _check_ranges(cls, ranges: tuple[str, ...]) -> tuple[str, ...]:
        for one in ranges:
            try:
                ip_network(one)
            except ValueError as error:
                raise ValueError(f"{one!r} is no network such as 100.64.0.0/10: {error}") from error
        return ranges

    @property
    def networks(self) -> tuple[Network, ...]:
        return tuple(ip_network(one) for one in self.ranges)
