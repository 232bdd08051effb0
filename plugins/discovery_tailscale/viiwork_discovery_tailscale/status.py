"""The status that tailscaled tells, as far as it is read. Names and tags in it are what others say of themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Annotated, Final

import msgspec

from viiwork_core import DiscoveryFailed
from viiwork_discovery_tailscale.options import Network

IPAddress = IPv4Address | IPv6Address

_PHONES: Final = frozenset({"ios", "android", "tvos"})

_FOREIGN_EXITS: Final = "tag:mullvad-exit-node"
"""Of the exits that Tailscale sells: several hundred machines of another company, all of them online."""

_STATES: Final = {
    "NeedsLogin": "this machine is logged out; run `tailscale up`",
    "NeedsMachineAuth": "this machine waits for the approval of the tailnet's administrator",
    "Stopped": "Tailscale is switched off; run `tailscale up`",
    "InUseOtherUser": "another user of this machine has taken Tailscale",
}

_Text = Annotated[str, msgspec.Meta(max_length=512)]


class Machine(msgspec.Struct, frozen=True, rename={"name": "HostName", "os": "OS"}):
    """This machine or another one of the tailnet."""

    name: _Text = ""
    os: _Text = ""
    ips: list[_Text] | None = msgspec.field(default=None, name="TailscaleIPs")
    tags: list[_Text] | None = msgspec.field(default=None, name="Tags")
    online: bool = msgspec.field(default=False, name="Online")
    expired: bool = msgspec.field(default=False, name="Expired")
    sharee: bool = msgspec.field(default=False, name="ShareeNode")
    """Somebody else's, who was given a machine of this tailnet: it can dial, and cannot be dialled."""

    def addresses(self, ranges: Collection[Network]) -> Iterator[IPAddress]:
        """Those that are in the tailnet's ranges."""
        for text in self.ips or ():
            try:
                address = ip_address(text)
            except ValueError:
                continue
            if any(address in one for one in ranges if one.version == address.version):
                yield address

    def may_run_a_node(self) -> bool:
        """Whether it is worth a connection. A node that this is wrong about dials by itself."""
        at_hand = self.online and not self.expired and not self.sharee
        return at_hand and self.os.lower() not in _PHONES and _FOREIGN_EXITS not in (self.tags or ())


class Tailnet(msgspec.Struct, frozen=True, rename="pascal"):
    """The tailnet that this machine is in."""

    name: _Text = ""
    magic_dns_suffix: _Text = msgspec.field(default="", name="MagicDNSSuffix")


class Status(msgspec.Struct, frozen=True):
    """One answer of tailscaled. Fields that are not named here, the address for a login among them, are not kept."""

    state: _Text = msgspec.field(name="BackendState")
    own: Machine | None = msgspec.field(default=None, name="Self")
    peers: dict[str, msgspec.Raw] | None = msgspec.field(default=None, name="Peer")
    tailnet: Tailnet | None = msgspec.field(default=None, name="CurrentTailnet")

    def check(self, tailnet: str) -> None:
        """Raises DiscoveryFailed unless this machine is in a tailnet, and in that one if it is not empty."""
        if self.state != "Running":
            why = _STATES.get(self.state, "")
            raise DiscoveryFailed(f"tailscaled is in state {self.state[:40]!r}{why and ': ' + why}")
        found = self.tailnet or Tailnet()
        if tailnet and tailnet.lower() not in {found.name.lower(), found.magic_dns_suffix.lower()}:
            raise DiscoveryFailed(
                f"this machine is in the tailnet {found.name!r}, and mesh.tailscale.tailnet names {tailnet!r}",
                remedy="run `tailscale switch`, or correct mesh.tailscale.tailnet",
            )

    def own_address(self, ranges: Collection[Network]) -> IPAddress:
        """An IPv4 address if there is one. Raises DiscoveryFailed."""
        found = sorted(self.own.addresses(ranges), key=lambda one: one.version) if self.own else []
        if not found:
            raise DiscoveryFailed(
                "tailscaled runs, and this machine has no address in the tailnet yet",
                remedy="if the tailnet gives out addresses of its own, name them in mesh.tailscale.ranges",
            )
        return found[0]

    def machines(self) -> Iterator[Machine]:
        """The others. One that makes no sense is left out."""
        for raw in (self.peers or {}).values():
            try:
                yield msgspec.json.decode(raw, type=Machine)
            except (msgspec.DecodeError, UnicodeDecodeError):
                continue


def read_status(body: bytes) -> Status:
    """Raises DiscoveryFailed for what is no status."""
    try:
        return msgspec.json.decode(body, type=Status)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DiscoveryFailed(f"Tailscale's status cannot be read: {error}; it begins {_beginning(body)}") from error


def _beginning(body: bytes) -> str:
    """Enough of it to see what it is, and no more: further on may be an address to log in at."""
    return repr("".join(filter(str.isprintable, body[:80].decode("utf-8", "replace"))))
