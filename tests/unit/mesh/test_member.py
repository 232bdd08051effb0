"""What another process says of itself is checked like local input."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viiwork_core.errors import ConfigError
from viiwork_core.mesh.member import (
    LocalMember,
    Member,
    describe,
    gossip_name,
    join_address,
    network_kind,
    read_member,
    split_address,
)
from viiwork_core.mesh.membership import KinshipMembership
from viiwork_core.security.secret import MeshSecret

SECRET = MeshSecret.from_bytes(b"s" * 32)
META = {"v": "1-2", "node": "gpu-1", "id": "0a1b", "api": "8086", "role": "node", "kv": "10.1.0.2:8087"}


def local(node: str = "gpu-1", host: str = "127.0.0.1", **more: str) -> LocalMember:
    return LocalMember(node=node, node_id="0a1b", host=host, gossip_port=0, api_port=8086, **more)


def test_a_member_is_read() -> None:
    assert read_member("gpu-1/0a1b", "10.0.0.2:7946", META, suspect=True) == Member(
        node="gpu-1",
        node_id="0a1b",
        host="10.0.0.2",
        api_port=8086,
        kv_address="10.1.0.2:8087",
        wire_min=1,
        wire_max=2,
        role="node",
        suspect=True,
        gossip="10.0.0.2:7946",
    )


def test_what_a_node_says_of_itself_is_what_others_read() -> None:
    me = local(kv_address="[fd00::1]:9")
    read = read_member(gossip_name(me.node, me.node_id), "[::1]:7946", describe(me))
    assert (read.node, read.node_id, read.host, read.api_port) == (me.node, me.node_id, "::1", me.api_port)
    assert read.kv_address == me.kv_address


@pytest.mark.parametrize("node", ["g" * 253, "g" * 60, "g"])
def test_a_name_is_shortened_only_in_the_gossip(node: str) -> None:
    me = LocalMember(node=node, node_id="f" * 32, host="::1", gossip_port=0, api_port=1)
    name = gossip_name(node, me.node_id)
    assert len(name.encode()) <= 64
    assert read_member(name, "[::1]:7946", describe(me)).node == node


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("node", None),
        ("node", ""),
        ("node", "a b"),
        ("node", "a\n"),
        ("node", "a/b"),
        ("node", "another"),
        ("id", None),
        ("id", "f" * 33),
        ("id", "0a1c"),
        ("api", None),
        ("api", "0"),
        ("api", "65536"),
        ("api", "-1"),
        ("api", "٨٠"),
        ("api", "9" * 5000),
        ("v", None),
        ("v", "1"),
        ("v", "2-1"),
        ("v", "1-99999"),
        ("role", None),
        ("role", "root"),
        ("kv", ""),
        ("kv", "example.org:80"),
        ("kv", "10.0.0.1"),
        ("v", "2-3"),
        ("key", ""),
        ("key", "0123456"),
        ("key", "0123456G"),
    ],
)
def test_a_bad_value_is_refused(key: str, value: str | None) -> None:
    meta = {k: v for k, v in {**META, key: value}.items() if v is not None}
    with pytest.raises(ValueError, match=r"[a-z]"):
        read_member("gpu-1/0a1b", "10.0.0.2:7946", meta)


def test_the_longest_description_fits_into_what_gossip_carries() -> None:
    longest = LocalMember(
        node="g" * 253,
        node_id="f" * 32,
        host="fd7a:115c:a1e0:ffff:ffff:ffff:ffff:ffff",
        gossip_port=65535,
        api_port=65535,
        kv_address="[fd7a:115c:a1e0:ffff:ffff:ffff:ffff:ffff]:65535",
        role="gateway",
    )
    KinshipMembership(longest, mesh="m" * 64, secret=SECRET)
    assert sum(len(key) + len(value) for key, value in describe(longest).items()) < 512 - 8 - len("key")


def test_a_member_of_a_newer_wire_that_also_speaks_ours_is_read() -> None:
    assert read_member("gpu-1/0a1b", "10.0.0.2:7946", {**META, "v": "1-9"}).wire_max == 9


@pytest.mark.parametrize("address", ["0.0.0.0:1", "[::]:1", "224.0.0.1:1", "host:1", "10.0.0.1"])
def test_a_bad_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match=r"[a-z]"):
        read_member("gpu-1/0a1b", address, META)


@given(st.dictionaries(st.sampled_from(sorted(META)), st.text()), st.text(), st.text())
def test_nothing_but_a_value_error_comes_of_nonsense(meta: dict[str, str], name: str, address: str) -> None:
    with pytest.raises(ValueError, match=r"[a-z]"):
        read_member(name, address, meta)


@pytest.mark.parametrize(("text", "host", "port"), [("127.0.0.1:1", "127.0.0.1", 1), ("[::1]:65535", "::1", 65535)])
def test_an_address_is_split(text: str, host: str, port: int) -> None:
    ip, found = split_address(text)
    assert (str(ip), found) == (host, port)


@pytest.mark.parametrize(
    "text", ["", ":1", "::1:80", "[127.0.0.1]:1", "127.0.0.1:", "127.0.0.1:+1", "[fe80::1%eth0]:1", "a:1", "1:1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"[a-z]"):
        split_address(text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("10.0.0.1", "192.168.1.1"),
        ("127.0.0.1", "::1"),
        ("100.64.0.1", "100.127.255.255"),
        ("10.0.0.1", "::ffff:172.16.0.1"),
        ("10.0.0.1", "64:ff9b::10.0.0.9"),
        ("8.8.8.8", "169.254.169.254"),
        ("8.8.8.8", "::ffff:1.1.1.1"),
    ],
)
def test_these_are_the_same_kind_of_network(one: str, other: str) -> None:
    assert kind(one) == kind(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("10.0.0.1", "100.64.0.1"),
        ("10.0.0.1", "127.0.0.1"),
        ("10.0.0.1", "::ffff:127.0.0.1"),
        ("10.0.0.1", "64:ff9b::7f00:1"),
        ("100.64.0.1", "100.128.0.1"),
    ],
)
def test_these_are_not(one: str, other: str) -> None:
    assert kind(one) != kind(other)


def kind(host: str) -> int | None:
    return network_kind(split_address(f"[{host}]:1" if ":" in host else f"{host}:1")[0])


@pytest.mark.parametrize(
    ("me", "open_mesh", "named"),
    [
        pytest.param(local(host="0.0.0.0"), False, "mesh.advertise", id="any address"),
        pytest.param(local(host="::"), False, "mesh.advertise", id="any IPv6 address"),
        pytest.param(local(host="gpu.example"), False, "mesh.advertise", id="a name"),
        pytest.param(local(host="8.8.8.8"), True, "mesh.open", id="open and public"),
        pytest.param(local(node="a b"), False, "node.name", id="a node name"),
        pytest.param(local(kv_address="here"), False, "ip:port", id="an address for replicas"),
    ],
)
def test_a_node_that_cannot_be_described_does_not_start(me: LocalMember, open_mesh: bool, named: str) -> None:
    with pytest.raises(ConfigError) as caught:
        KinshipMembership(me, mesh="m", secret=None if open_mesh else SECRET)
    assert named in caught.value.message + caught.value.remedy


@pytest.mark.parametrize(("host", "address"), [("192.0.2.7", "192.0.2.7:8086"), ("fd00::1", "[fd00::1]:8086")])
def test_an_address_is_joined_as_it_is_split(host: str, address: str) -> None:
    assert join_address(host, 8086) == address
    ip, port = split_address(address)
    assert (str(ip), port) == (host, 8086)
