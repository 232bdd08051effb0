"""Which interface is the local network, which address is its own, and who may be on it."""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_interface

import pytest

from viiwork_core import Card, DiscoveryFailed
from viiwork_discovery_mdns import interfaces as module
from viiwork_discovery_mdns.interfaces import Interface, choose, interfaces, routes_of_ipv4, routes_of_ipv6
from viiwork_discovery_mdns.records import instance, same_mesh, text_of

ROUTES = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0
down0\t00000000\t0101A8C0\t0002\t0\t0\t1\t00000000\t0\t0\t0
eth0\t00000000\t0101A8C0\t0003\t0\t0\t100\t00000000\t0\t0\t0
docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
half0\t00000000\t00000000\t0001\t0\t0\t0\t00000080\t0\t0\t0
"""

ROUTES6 = f"""\
{"0" * 32} 00 {"0" * 32} 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth1
{"0" * 32} 00 {"0" * 32} 00 fe800000000000000000000000000002 00000064 00000001 00000000 00000003     eth0
{"0" * 32} 00 {"0" * 32} 00 {"0" * 32} ffffffff 00000001 00000000 00200200       lo
fe800000000000000000000000000000 40 {"0" * 32} 00 {"0" * 32} 00000001 00000001 00000000 00000001     eth2
"""


def made(name: str, *addresses: str) -> Interface:
    return Interface(name, 2, tuple(ip_interface(one) for one in addresses))


LO = made("lo", "127.0.0.1/8", "::1/128")
ETH0 = made("eth0", "192.168.1.7/24", "fd00::7/64", "2001:db8:1::7/64", "fe80::7/64")
TAILNET = made("tailscale0", "100.64.0.7/32", "fd7a:115c:a1e0::7/128")
BARE = made("bare0", "169.254.3.3/16", "fe80::8/64")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A machine with these interfaces, and the IPv4 default route on eth0."""
    monkeypatch.setattr(module, "interfaces", lambda: [LO, TAILNET, ETH0, BARE])
    monkeypatch.setattr(module, "_default_routes", lambda: iter(["ppp0", "eth0"]))
    return monkeypatch


def test_this_machine_has_loopback() -> None:
    (loopback,) = [one for one in interfaces() if one.holds(ip_address("127.0.0.1"))]
    assert loopback.loopback
    assert loopback.near(ip_address("127.255.0.1"))


def test_the_preferred_default_route_comes_first() -> None:
    assert routes_of_ipv4(ROUTES) == ["eth0", "wlan0"]
    assert routes_of_ipv6(ROUTES6) == ["eth0", "eth1"]
    assert routes_of_ipv4("") == routes_of_ipv6("") == []


@pytest.mark.parametrize(
    ("wanted", "address", "chosen"),
    [
        ("", None, "eth0"),
        ("", "192.168.1.7", "eth0"),
        ("", "127.0.0.1", "lo"),
        ("", "10.9.9.9", "eth0"),
        ("", "100.64.0.7", "eth0"),
        ("", "fd7a:115c:a1e0::7", "eth0"),
        ("bare0", "192.168.1.7", "bare0"),
        ("tailscale0", None, "tailscale0"),
    ],
)
def test_the_interface_is_the_wanted_one_or_the_address_or_the_route_tells(
    machine: pytest.MonkeyPatch, wanted: str, address: str | None, chosen: str
) -> None:
    assert choose(wanted, ip_address(address) if address else None).name == chosen


def test_without_a_route_the_only_interface_that_leads_anywhere(machine: pytest.MonkeyPatch) -> None:
    machine.setattr(module, "_default_routes", lambda: iter(()))
    with pytest.raises(DiscoveryFailed, match=r"\(there are: eth0, tailscale0\)") as refused:
        choose("", None)
    assert "mesh.mdns.interface" in refused.value.remedy
    machine.setattr(module, "interfaces", lambda: [LO, ETH0, BARE])
    assert choose("", None) is ETH0
    machine.setattr(module, "interfaces", lambda: [LO])
    with pytest.raises(DiscoveryFailed, match="no network interface has an address"):
        choose("", None)


@pytest.mark.parametrize(
    ("addresses", "own"),
    [
        (["fe80::1/64", "2001:db8::1/64", "fd00::1/64", "192.0.2.1/24", "10.0.0.1/8"], "10.0.0.1"),
        (["fe80::1/64", "2001:db8::1/64", "192.0.2.1/24"], "192.0.2.1"),
        (["fe80::1/64", "2001:db8::1/64", "fd00::1/64"], "fd00::1"),
        (["fe80::1/64", "2001:db8::1/64"], "2001:db8::1"),
        (["fe80::1/64", "169.254.1.1/16"], None),
    ],
)
def test_the_own_address_is_one_that_others_reach(addresses: list[str], own: str | None) -> None:
    found = made("eth0", *addresses).own_address()
    assert (None if found is None else str(found)) == own


@pytest.mark.parametrize(
    ("address", "reached"),
    [
        ("192.168.1.9", True),
        ("10.0.0.1", True),
        ("100.64.0.9", True),
        ("fd00::9", True),
        ("2001:db8:1::9", True),
        ("2001:db8:2::9", False),
        ("203.0.113.9", False),
        ("127.0.0.1", False),
        ("::1", False),
        ("169.254.1.1", False),
        ("fe80::9", False),
        ("::ffff:192.168.1.9", False),
        ("64:ff9b::c0a8:109", False),
    ],
)
def test_only_the_local_network_is_reached(address: str, *, reached: bool) -> None:
    assert ETH0.reaches(ip_address(address)) is reached


def test_what_zeroconf_is_told_to_speak_on() -> None:
    assert ETH0.to_speak_on() == ["192.168.1.7", 2]
    assert made("six", "fd00::1/64").to_speak_on() == [2]
    assert LO.to_speak_on() == ["127.0.0.1"], "IPv6 has no multicast there"


@pytest.mark.parametrize(
    ("node", "label"),
    [
        ("gpu-1", "gpu-1"),
        ("gpu 1.lan", "gpu 1-lan"),
        ('"x"', '"x"'),
        ("a\tb\x00c", "a-b-c"),
        (" ", "node"),
        ("", "node"),
        ("é" * 27, "é" * 27),
        ("é" * 28, "é" * 22 + "-DIGEST"),
        ("x" * 80, "x" * 45 + "-DIGEST"),
    ],
)
def test_a_name_becomes_one_label(node: str, label: str) -> None:
    kept, digest, _ = label.partition("DIGEST")
    made = instance(node)
    assert re.fullmatch(re.escape(kept) + "[0-9a-f]{8}" * len(digest[:1]), made)
    assert len(made.encode()) <= 54, "there is room for what tells two of one name apart"


def test_a_text_record_holds_whole_names_up_to_its_limit() -> None:
    text = text_of(Card("é" * 125, "1", "127.0.0.1:1", "m" * 128))
    assert text == {"node": "é" * 125, "mesh": "m" * 128}
    assert text_of(Card("é" * 126, "1", "127.0.0.1:1", "m"))["node"] == "é" * 125


@pytest.mark.parametrize(
    ("text", "same"),
    [({}, True), ({b"mesh": b"home"}, True), ({b"MESH": b"work"}, False), ({b"mesh": None}, True)],
)
def test_a_mesh_that_is_named_must_be_this_one(text: dict[bytes, bytes | None], *, same: bool) -> None:
    assert same_mesh(Card("a", "1", "127.0.0.1:1", "home"), text) is same
    assert same_mesh(None, text)
