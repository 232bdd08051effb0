"""A member of the mesh, and the checks that what it says of itself must pass."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

WIRE_MIN: Final = 1
WIRE_MAX: Final = 1
"""Versions of the member-to-member protocol that this release speaks."""

_NAME_BYTES = 64

_NODE = re.compile(r"[A-Za-z0-9._-]{1,253}")
_NODE_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")
_WIRE = re.compile(r"([0-9]{1,4})-([0-9]{1,4})", re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}", re.ASCII)
_ROLES = frozenset({"node", "gateway"})
_KEY = re.compile(r"[0-9a-f]{8}")

# Who may be believed in an open mesh: those in the same kind of network as this node, and nobody from outside it.
_KINDS = (
    (ip_network("127.0.0.0/8"), ip_network("::1/128")),
    (ip_network("100.64.0.0/10"), ip_network("fd7a:115c:a1e0::/48")),
    tuple(ip_network(net) for net in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7")),
)
_NAT64 = IPv6Network("64:ff9b::/96")


IPAddress = IPv4Address | IPv6Address


@dataclass(frozen=True, slots=True)
class Member:
    """Another process of the mesh, as its gossip describes it. Every value was checked."""

    node: str
    node_id: str
    """Differs in every process: a restarted node is a new member."""

    host: str
    """IP address, where the member's gossip comes from. The API listens there too."""

    api_port: int
    kv_address: str | None = None
    """ip:port that takes replicas, when that is not the API's."""

    wire_min: int = WIRE_MIN
    wire_max: int = WIRE_MAX
    role: str = "node"
    suspect: bool = False
    """It missed its probes. Shown, not acted on."""

    gossip: str = ""
    """ip:port of its gossip."""

    key: str | None = None
    """Id of the newest secret that it knows; None: an open mesh."""


@dataclass(frozen=True, slots=True)
class LocalMember:
    """What this process is in the mesh."""

    node: str
    node_id: str
    host: str
    """IP address that others reach; the only one that gossip listens on."""

    gossip_port: int
    """0 lets the system choose (tests)."""

    api_port: int
    kv_address: str | None = None
    role: str = "node"
    key: str | None = None
    """Id of the newest secret that it knows."""


def gossip_name(node: str, node_id: str) -> str:
    """NODE/ID, the node's name shortened so that the whole keeps within kinship's 64 bytes."""
    return f"{node[: _NAME_BYTES - 1 - len(node_id)]}/{node_id}"


def read_member(name: str, address: str, meta: Mapping[str, str], *, suspect: bool = False) -> Member:
    """Check what another process says of itself. Raises ValueError with the reason."""
    host, _ = split_address(address)
    if host.is_unspecified or host.is_multicast:
        raise ValueError(f"{host} is no address of a machine")
    node, node_id = _matching(meta, "node", _NODE), _matching(meta, "id", _NODE_ID)
    if name != gossip_name(node, node_id):
        raise ValueError("its gossip name is not that of its node")
    wire_min, wire_max = _wire(meta)
    kv = meta.get("kv")
    if kv is not None:
        split_address(kv)
    role = meta.get("role", "")
    if role not in _ROLES:
        raise ValueError("its role is unknown")
    if wire_min > WIRE_MAX or wire_max < WIRE_MIN:
        ours = f"{WIRE_MIN}-{WIRE_MAX}"
        raise ValueError(f"it speaks wire versions {wire_min}-{wire_max}, this node {ours}: update the older of them")
    return Member(
        node=node,
        node_id=node_id,
        host=str(host),
        api_port=_port(meta.get("api", "")),
        kv_address=kv,
        wire_min=wire_min,
        wire_max=wire_max,
        role=role,
        suspect=suspect,
        gossip=address,
        key=_matching(meta, "key", _KEY) if "key" in meta else None,
    )


def split_address(address: str) -> tuple[IPAddress, int]:
    """The parts of ip:port, IPv6 in brackets. Names are refused: what others say is never looked up."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    try:
        ip = ip_address(host[1:-1] if bracketed else host)
    except ValueError:
        ip = None
    if not colon or ip is None or (ip.version == 6) != bracketed or "%" in host:
        raise ValueError(f"{address[:80]!r} is not ip:port")
    return ip, _port(port)


def join_address(host: str, port: int) -> str:
    """ip:port, IPv6 in brackets: what `split_address` reads."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def describe(local: LocalMember) -> dict[str, str]:
    """What this process says of itself: what `read_member` reads."""
    meta = {
        "v": f"{WIRE_MIN}-{WIRE_MAX}",
        "node": local.node,
        "id": local.node_id,
        "api": str(local.api_port),
        "role": local.role,
    }
    if local.kv_address is not None:
        meta["kv"] = local.kv_address
    if local.key is not None:
        meta["key"] = local.key
    return meta


def embedded(address: IPAddress) -> IPAddress:
    """The IPv4 address inside a v4-mapped or NAT64 form, which is where packets go; any other as it is."""
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return IPv4Address(address.packed[-4:])
        return address.ipv4_mapped or address
    return address


def network_kind(address: IPAddress) -> int | None:
    """Which kind of network an address belongs to; None: a public one. Judges the IPv4 inside an IPv6 form."""
    address = embedded(address)
    return next((i for i, nets in enumerate(_KINDS) if any(address in net for net in nets)), None)


def _matching(meta: Mapping[str, str], key: str, pattern: re.Pattern[str]) -> str:
    value = meta.get(key, "")
    if not pattern.fullmatch(value):
        raise ValueError(f"its {key} is missing or malformed")
    return value


def _wire(meta: Mapping[str, str]) -> tuple[int, int]:
    found = _WIRE.fullmatch(meta.get("v", ""))
    if not found or int(found[1]) > int(found[2]):
        raise ValueError("its wire versions are missing or malformed")
    return int(found[1]), int(found[2])


def _port(text: str) -> int:
    if not _PORT.fullmatch(text) or not 0 < int(text) < 65536:
        raise ValueError("a port is missing or out of range")
    return int(text)
