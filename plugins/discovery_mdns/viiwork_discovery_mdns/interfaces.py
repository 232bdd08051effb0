"""The network interfaces of this machine, and which of them is the local network."""

from __future__ import annotations

import platform
import socket
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import (
    IPv4Address,
    IPv4Interface,
    IPv4Network,
    IPv6Address,
    IPv6Interface,
    IPv6Network,
    ip_address,
    ip_network,
)
from pathlib import Path

import ifaddr

from viiwork_core import DiscoveryFailed

IPAddress = IPv4Address | IPv6Address

_PRIVATE = tuple(ip_network(net) for net in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"))
_TAILNET = tuple(ip_network(net) for net in ("100.64.0.0/10", "fd7a:115c:a1e0::/48"))
_EMBEDDING = (IPv6Network("::ffff:0:0/96"), IPv6Network("64:ff9b::/96"))
"""IPv6 forms of IPv4 addresses, which a node that listens at the IPv4 address has no use for."""

_OPTION = "set mesh.mdns.interface to one of them, or mesh.advertise to this node's address"


@dataclass(frozen=True, slots=True)
class Interface:
    """One network interface that has an address."""

    name: str
    index: int
    addresses: tuple[IPv4Interface | IPv6Interface, ...]
    """Those that may be used: a new IPv6 address may not, as long as the system makes sure that it is unique."""

    speaks_ipv6: bool = True
    """Whether the first IPv6 address may be used, which is the one to speak from."""

    @property
    def loopback(self) -> bool:
        return any(one.ip.is_loopback for one in self.addresses)

    def holds(self, address: IPAddress) -> bool:
        """Whether the address is this interface's own."""
        return any(one.ip == address for one in self.addresses)

    def own_address(self) -> IPAddress | None:
        """The address to be reached at: IPv4 before IPv6, private before public. None: it has only link-local ones."""
        usable = [one.ip for one in self.addresses if not one.ip.is_link_local]
        return min(usable, key=lambda ip: (ip.version, not _private(ip)), default=None)

    def near(self, address: IPAddress) -> bool:
        """Whether the address is in one of this interface's networks."""
        return any(address in one.network for one in self.addresses)

    def reaches(self, address: IPAddress) -> bool:
        """Whether a node on this network may be at the address: private, or near.

        Whoever is on the network can announce anything, so that nothing outside of it is dialled on their word.
        """
        if address.is_link_local or address.is_multicast or address.is_unspecified:
            return False
        if _in(_EMBEDDING, address):
            return False
        return _private(address) or self.near(address)

    def to_speak_on(self) -> list[str | int]:
        """What zeroconf calls this interface: an IPv4 address, and the index, which stands for IPv6."""
        ipv4 = [str(one.ip) for one in self.addresses if one.version == 4][:1]
        has_ipv6 = self.speaks_ipv6 and any(one.version == 6 for one in self.addresses)
        # Nobody hears IPv6 multicast on loopback.
        return [*ipv4, *([self.index] if has_ipv6 and not (self.loopback and ipv4) else [])]


def interfaces() -> list[Interface]:
    """All that have an address. Aliases of one, such as eth0:1, count as it."""
    adapters: dict[str, list[ifaddr.Adapter]] = {}
    for adapter in ifaddr.get_adapters():
        adapters.setdefault(adapter.nice_name.partition(":")[0], []).append(adapter)
    found = [_interface(name, parts) for name, parts in adapters.items()]
    return [one for one in found if one.addresses]


def _interface(name: str, parts: Sequence[ifaddr.Adapter]) -> Interface:
    addresses: list[IPv4Interface | IPv6Interface] = []
    ready = []
    for one in (ip for part in parts for ip in part.ips):
        if isinstance(one.ip, str):
            addresses.append(IPv4Interface(f"{one.ip}/{one.network_prefix}"))
            continue
        ready.append(_ready(one.ip))
        if ready[-1]:
            addresses.append(IPv6Interface(f"{one.ip[0].partition('%')[0]}/{one.network_prefix}"))
    return Interface(name, parts[0].index or 0, tuple(dict.fromkeys(addresses)), speaks_ipv6=ready[:1] == [True])


def _ready(address: tuple[str, int, int]) -> bool:
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
        try:
            probe.bind((address[0], 0, *address[1:]))
        except OSError:
            return False
        return True


def choose(wanted: str, address: IPAddress | None) -> Interface:
    """The interface to speak on: the wanted one, else the one that has the address, else the default route's.

    Raises DiscoveryFailed with the names of those that are there.
    """
    there = interfaces()
    if wanted:
        if found := next((one for one in there if one.name == wanted), None):
            return found
        raise DiscoveryFailed(f"interface {wanted} does not exist or has no address {_named(there)}", remedy=_OPTION)
    # A tailnet has no multicast: who is reached there is announced on the local network all the same.
    at_home = address is not None and not _in(_TAILNET, address)
    holders = [one for one in there if address is not None and at_home and one.holds(address)]
    return holders[0] if holders else _of_default_route(there)


def _of_default_route(there: Sequence[Interface]) -> Interface:
    """Without such a route: the only one that leads anywhere, as between two machines and a cable."""
    for name in _default_routes():
        if found := next((one for one in there if one.name == name), None):
            return found
    leading = [one for one in there if not one.loopback and one.own_address() is not None]
    if len(leading) == 1:
        return leading[0]
    if leading:
        what = f"there is no default route that tells which interface is the local network {_named(leading)}"
        raise DiscoveryFailed(what, remedy=_OPTION)
    remedy = "connect this machine to a network, or set mesh.network to none"
    raise DiscoveryFailed("no network interface has an address", remedy=remedy)


def _named(there: Iterable[Interface]) -> str:
    return f"(there are: {', '.join(sorted(one.name for one in there)) or 'none'})"


def _private(address: IPAddress) -> bool:
    return _in(_PRIVATE, address) or _in(_TAILNET, address)


def _in(networks: Iterable[IPv4Network | IPv6Network], address: IPAddress) -> bool:
    return any(address in network for network in networks)


def _default_routes() -> Iterator[str]:
    """Names of the interfaces of the default routes, IPv4 first, the preferred one first."""
    if platform.system() == "Linux":
        # From the main table: what a VPN takes over is in tables of its own.
        yield from routes_of_ipv4(_read("/proc/thread-self/net/route"))
        yield from routes_of_ipv6(_read("/proc/thread-self/net/ipv6_route"))
        return
    for family, anywhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        address = _source_of(family, anywhere)
        yield from (one.name for one in interfaces() if address is not None and one.holds(address))


def routes_of_ipv4(table: str) -> list[str]:
    """From the text of /proc/net/route."""
    rows = [line.split() for line in table.splitlines()[1:]]
    # Iface Destination Gateway Flags RefCnt Use Metric Mask; a route that is up has bit 0 of its flags.
    found = [(int(r[6]), r[0]) for r in rows if len(r) > 7 and r[1] == r[7] == "00000000" and int(r[3], 16) & 1]
    return [name for _, name in sorted(found)]


def routes_of_ipv6(table: str) -> list[str]:
    """From the text of /proc/net/ipv6_route. The unreachable route that every machine has is of interface lo."""
    rows = [line.split() for line in table.splitlines()]
    found = [(int(r[5], 16), r[9]) for r in rows if len(r) > 9 and r[0] == "0" * 32 and r[1] == "00" and r[9] != "lo"]
    return [name for _, name in sorted(found)]


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii")
    except OSError:
        return ""


def _source_of(family: socket.AddressFamily, destination: str) -> IPAddress | None:
    """The address from which this machine would reach another. Nothing is sent."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((destination, 9))
        except OSError:
            return None
        return ip_address(probe.getsockname()[0].partition("%")[0])
