"""The records: making this node's, and reading those of others."""

from __future__ import annotations

import hashlib
import unicodedata
from collections.abc import Mapping, Sequence
from ipaddress import IPv6Address, ip_address
from typing import Final

from viiwork_core import Card, Sighting
from viiwork_discovery_mdns.interfaces import Interface, IPAddress

SERVICE: Final = "_viiwork._tcp.local."

MAX_ADDRESSES: Final = 16
"""Of one node that are reported; a machine has fewer."""

_LABEL_BYTES = 63 - len("-01234567")
"""Of a DNS label, with room for what tells two nodes of one name apart."""

_TEXT_BYTES = 255
"""Of one key=value of a TXT record."""


def instance(node: str) -> str:
    """A node's name as the instance of the service: one DNS label of readable text.

    Dots part labels, and become hyphens. A name that is too long ends with a digest, so that another one that begins
    alike is told from it. The whole name is in the TXT record.
    """
    text = unicodedata.normalize("NFC", node)
    plain = "".join("-" if char == "." or not char.isprintable() else char for char in text).strip() or "node"
    if len(plain.encode("utf-8", "replace")) <= _LABEL_BYTES:
        return plain
    digest = hashlib.blake2b(node.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{_shortened(plain, _LABEL_BYTES - len(digest) - 1)}-{digest}"


def contested_instance(card: Card) -> str:
    """The same, when another node has taken it: this process's alone."""
    return f"{instance(card.node)}-{card.node_id[-8:]}"


def text_of(card: Card) -> dict[str, str]:
    """The TXT record."""
    return {key: _shortened(value, _TEXT_BYTES - len(key) - 1) for key, value in _said(card).items()}


def same_mesh(card: Card | None, text: Mapping[bytes, bytes | None]) -> bool:
    """Whether a TXT record may be of a node of this mesh. One that does not name its mesh may be."""
    said = _value(text, b"mesh")
    return card is None or said is None or said == text_of(card)["mesh"]


def sighting_of(
    source: str, interface: Interface, port: int | None, addresses: Sequence[str], text: Mapping[bytes, bytes | None]
) -> Sighting | None:
    """What an answer says; None: nothing that could be joined."""
    if not port:
        return None
    parsed = {ip: None for ip in map(_parsed, addresses) if ip is not None and interface.reaches(ip)}
    places = [_place(ip, port) for ip in sorted(parsed, key=lambda ip: (not interface.near(ip), ip.version))]
    if not places:
        return None
    first, *others = places[:MAX_ADDRESSES]
    return Sighting(first, source, hint=_value(text, b"node"), also=tuple(others))


def _said(card: Card) -> dict[str, str]:
    return {"node": card.node, "mesh": card.mesh}


def _value(text: Mapping[bytes, bytes | None], key: bytes) -> str | None:
    """One value of a TXT record, if it is readable. Keys are compared without regard to case."""
    raw = next((value for name, value in text.items() if name.lower() == key), None)
    try:
        value = (raw or b"").decode()
    except UnicodeDecodeError:
        return None
    return value if value and value.isprintable() else None


def _parsed(address: str) -> IPAddress | None:
    try:
        found = ip_address(address)
    except ValueError:
        return None
    return None if isinstance(found, IPv6Address) and found.scope_id else found


def _place(address: IPAddress, port: int) -> str:
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


def _shortened(text: str, size: int) -> str:
    """At most so many bytes of UTF-8, cut between characters."""
    return text.encode("utf-8", "replace")[:size].decode("utf-8", "ignore")
