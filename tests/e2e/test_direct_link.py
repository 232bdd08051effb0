"""Caches take the direct link to a host, and the common network once that link is cut."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from dialogue import LONG, WARM, Conversation
from hosts import Host, Hosts
from mesh import FIRST, SECOND, Mesh, tiny, two_nodes
from nodes import prose, until

pytestmark = pytest.mark.slow

LINK, COMMON = "direct0", "viiwork0"
ESTABLISHED = "01"
ADDRESSES = ("198.51.100.1", "198.51.100.2")


@pytest.fixture
def linked(two_cables: Hosts, gguf: Path, llama_server: None, tmp_path: Path) -> Iterator[Mesh]:
    with two_nodes(two_cables, gguf, tmp_path, direct=ADDRESSES[1]) as made:
        yield made


@pytest.fixture
def slow_linked(two_cables: Hosts, gguf: Path, llama_server: None, tmp_path: Path) -> Iterator[Mesh]:
    """The same, and a cache takes seconds."""
    with two_nodes(two_cables, gguf, tmp_path, direct=ADDRESSES[1], model=partial(tiny, bandwidth_mbit=8)) as made:
        yield made


@pytest.fixture
def two_cables(cable: Hosts) -> Hosts:
    """Two machines with a second cable between them, for caches alone."""
    assert cable.second.namespace is not None
    cable.first.run(
        "ip", "link", "add", LINK, "type", "veth", "peer", "name", LINK, "netns", cable.second.namespace.name
    )
    for host, address in zip((cable.first, cable.second), ADDRESSES, strict=True):
        host.run("ip", "address", "add", f"{address}/24", "dev", LINK)
        host.run("ip", "link", "set", LINK, "up")
    return cable


def carried(host: Host, link: str) -> int:
    """Bytes that a host has sent over a link."""
    with host.inside():
        lines = Path("/proc/thread-self/net/dev").read_text().splitlines()
    return next(int(line.split(":")[1].split()[8]) for line in lines if line.strip().startswith(f"{link}:"))


def connected(host: Host) -> bool:
    """Whether it keeps a connection over the direct link; an unused one is closed after some seconds."""
    there = bytes(map(int, reversed(ADDRESSES[1].split(".")))).hex().upper()
    with host.inside():
        lines = Path("/proc/thread-self/net/tcp").read_text().splitlines()[1:]
    return any(line.split()[2].startswith(there) and line.split()[3] == ESTABLISHED for line in lines)


def cut(mesh: Mesh, end: str) -> None:
    """Where it is the other end, nothing tells this one."""
    (mesh.first if end == "own" else mesh.second).host.run("ip", "link", "set", LINK, "down")


# A new connection is refused, or waited for in vain; one that was kept carries nothing.
@pytest.mark.parametrize("end", ["own", "other"])
@pytest.mark.parametrize("kept", [False, True])
def test_caches_go_round_a_link_that_is_cut(linked: Mesh, end: str, kept: bool) -> None:
    mesh, host = linked, linked.first.host
    talk, size = Conversation(mesh, "linked"), 0
    for turn, (link, other) in enumerate(((LINK, COMMON), (COMMON, LINK)), start=1):
        before, beside = carried(host, link), carried(host, other)
        talk.say(prose(LONG, seed=turn), on=FIRST)
        now = talk.arrived(mesh.second, turn, within=60).stat().st_size
        assert carried(host, link) - before > 0.9 * (now - size), "what is new went this way"
        assert turn == 2 or carried(host, other) - beside < now / 4, "and not the other"
        size = now
        if turn == 1:
            if not kept:
                until(lambda: not connected(host), "the connection is closed")
            cut(mesh, end)
    assert talk.say("And what came after that?", on=SECOND).warmth >= WARM


def test_caches_go_round_a_link_that_is_cut_under_them(slow_linked: Mesh) -> None:
    mesh, talk = slow_linked, Conversation(slow_linked, "cut")
    talk.say(prose(2 * LONG, seed=1), on=FIRST)
    until(lambda: [file for file in mesh.second.store.glob("*.tmp") if file.stat().st_size], "a part of it is there")
    cut(mesh, "other")
    assert talk.say("And what came after that?", on=FIRST).warmth >= WARM, "turns do not wait for it"
    talk.arrived(mesh.second, turn=2, within=60)
    assert talk.say("And then?", on=SECOND).warmth >= WARM
