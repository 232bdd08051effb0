"""Real nodes that are told nothing of each other but `mesh.network: lan`, and their source by itself."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from hosts import Host, Hosts
from mdns import beside, card, on, seen, source
from mesh import FIRST, SECOND, new_secret
from nodes import MODEL, Node, started, until, user
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from viiwork_core import Card, DiscoveryFailed, Sighting
from viiwork_discovery_mdns.discovery import MdnsDiscovery
from viiwork_discovery_mdns.records import SERVICE

pytestmark = pytest.mark.slow

LINK = "viiwork0"


@contextmanager
def engine(host: Host) -> Iterator[str]:
    """The URL of an engine that runs already."""
    with host.inside():
        port = Host("127.0.0.1").free_port()
        command = [sys.executable, "-m", "viiwork_core.testing.fake_engine", "--port", str(port), "--alias", MODEL]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@contextmanager
def node(host: Host, name: str, folder: Path, mesh: Mapping[str, Any], secret: str) -> Iterator[Node]:
    """A node with an engine, whose mesh is as given."""
    with engine(host) as url:
        config = {
            "node": {"name": name, "state_dir": str(folder / name / "state")},
            "api": {"port": 0},
            "mesh": {
                "bind_port": host.free_port(),
                "capacity_poll": "200ms",
                "rejoin_interval": "1s",
                **({} if host.namespace else {"advertise": host.address}),
                **mesh,
            },
            "models": [{"name": MODEL, "engine": "external", "context": 4096, "external": {"urls": [url]}}],
        }
        with started(host, name, folder / name, config, secret) as made:
            until(made.healthy, f"{name} is healthy\n{made.log()}", 60)
            yield made


def met(first: Node, second: Node) -> None:
    def both() -> bool:
        return second.name in first.members() and first.name in second.members()

    until(both, f"{first.name} and {second.name} see each other\n{first.log()}", 60)


def test_nodes_on_one_network_find_each_other_and_forward(pair: Hosts, tmp_path: Path) -> None:
    secret, lan = new_secret(), {"network": "lan"}
    with ExitStack() as stack:
        first = stack.enter_context(node(pair.first, FIRST, tmp_path, lan, secret))
        second = stack.enter_context(node(pair.second, SECOND, tmp_path, lan, secret))
        met(first, second)
        assert first.get("/v1/status").json["members"][0]["addr"] == pair.second.address
        assert first.events("joined", source="mdns") or second.events("joined", source="mdns")

        def forwarded() -> str | None:
            reply = first.chat([user("hello")], host=SECOND)
            return reply.headers.get("x-viiwork-origin") if reply.status == 200 else None

        assert until(forwarded, f"a request is forwarded\n{first.log()}") == FIRST
        assert second.end() == 0
        until(lambda: first.members() == set(), "the first is alone again")


@pytest.mark.slow
def test_each_announced_address_is_tried_and_the_one_that_answers_is_kept(cable: Hosts, tmp_path: Path) -> None:
    """The second node announces nothing itself; somebody tells more addresses of its machine than it listens on."""
    secret = new_secret()
    with ExitStack() as stack:
        silent = {"network": "seeds", "advertise": cable.second.address, "seeds": ["192.0.2.99:7946"]}
        second = stack.enter_context(node(cable.second, SECOND, tmp_path, silent, secret))
        port = int(configured(tmp_path / SECOND)["mesh"]["bind_port"])
        addresses = ["192.0.2.77", "10.9.9.9", "203.0.113.1", cable.second.address, "192.0.2.78"]
        stack.enter_context(announced(cable.second, SECOND, addresses, port))
        first = stack.enter_context(node(cable.first, FIRST, tmp_path, {"network": "lan"}, secret))
        met(first, second)
        (line,) = first.heard("joined")
        assert (line["address"], line["source"]) == (f"{cable.second.address}:{port}", "mdns")
        assert first.events("could not join") == []


@pytest.mark.slow
def test_a_network_that_is_not_there_holds_up_nothing_else(tmp_path: Path) -> None:
    """The local API serves, and another source finds who it can find."""
    secret, here, there = new_secret(), Host("127.0.0.1"), Host("127.0.0.2")
    port = there.free_port()
    missing = {"mdns": {"interface": "no-such0"}}
    with ExitStack() as stack:
        seeds = {"network": "seeds", "seeds": [f"{there.address}:{port}"], **missing}
        first = stack.enter_context(node(here, FIRST, tmp_path, seeds, secret))
        alone = {"network": "lan", "bind_port": port, "lan": {"interface": "no-such0"}}
        second = stack.enter_context(node(there, SECOND, tmp_path, alone, secret))
        met(first, second)
        for one in (first, second):
            (line,) = one.heard("a discovery source does not open", source="mdns")
            assert "interface no-such0 does not exist" in line["reason"]
            assert one.chat([user("hello")], host=one.name).status == 200


@pytest.mark.slow
def test_nodes_without_ipv4_find_each_other_and_forward(cable: Hosts, tmp_path: Path) -> None:
    secret, lan = new_secret(), {"network": "lan"}
    only_ipv6(cable)
    # The test speaks to each over its own loopback.
    places = [Host("127.0.0.1", host.namespace) for host in (cable.first, cable.second)]
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(node(place, name, tmp_path, lan, secret))
            for place, name in zip(places, (FIRST, SECOND), strict=True)
        )
        met(first, second)
        assert first.get("/v1/status").json["members"][0]["addr"] == "fd00:7::2"
        until(lambda: first.chat([user("hello")], host=SECOND).status == 200, f"it is forwarded\n{first.log()}")


def configured(folder: Path) -> Any:
    return json.loads((folder / "viiwork.yaml").read_text())


# The source by itself


@contextmanager
def announced(host: Host, name: str, addresses: list[str], port: int) -> Iterator[None]:
    """An announcement of addresses by a program on that machine."""
    ready, leave = asyncio.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def work() -> None:
        info = AsyncServiceInfo(
            SERVICE,
            f"{name}.{SERVICE}",
            port=port,
            properties={"node": name},
            server="several.local.",
            parsed_addresses=addresses,
        )
        loops.append(asyncio.get_running_loop())
        async with AsyncZeroconf(interfaces=[host.address]) as peer:
            await (await peer.async_register_service(info))
            ready.set()
            await leave.wait()

    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(on, host, work)
        until(ready.is_set, "it is announced")
        try:
            yield
        finally:
            loops[0].call_soon_threadsafe(leave.set)
            running.result()


def only_ipv6(cable: Hosts) -> None:
    for host, address in ((cable.first, "fd00:7::1"), (cable.second, "fd00:7::2")):
        ip(host, "-4", "address", "flush", "dev", LINK)
        ip(host, "address", "add", f"{address}/64", "dev", LINK, "nodad")


def ip(host: Host, *arguments: str) -> None:
    subprocess.run(("ip", "-n", host.namespace.name, *arguments), check=True, capture_output=True)


def test_machines_without_ipv4_see_each_other(cable: Hosts, tmp_path: Path) -> None:
    only_ipv6(cable)

    async def first() -> tuple[str | None, set[Sighting]]:
        async with source(tmp_path) as made:
            # The kernel takes a second or two to let a link-local address be used.
            await opened(made, card("[fd00:7::1]:7946"))
            return await made.own_address(), await seen(made, bool)

    with beside(cable.second, tmp_path, card("[fd00:7::2]:7946", "there")):
        own, found = on(cable.first, first)
    assert own == "fd00:7::1"
    assert found == {Sighting("[fd00:7::2]:7946", "mdns", hint="there")}


async def opened(made: MdnsDiscovery, own: Card) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                await made.announce(own)
            except DiscoveryFailed:
                await asyncio.sleep(0.1)
            else:
                return


def test_an_interface_may_go_and_come_back(cable: Hosts, tmp_path: Path) -> None:
    def rename(old: str, new: str) -> None:
        for change in (("down",), ("name", new), ("up",)):
            ip(cable.first, "link", "set", old if change != ("up",) else new, *change)

    async def first() -> None:
        async with source(tmp_path, interface=LINK) as made:
            await made.announce(card("192.0.2.1:7946"))
            await seen(made, bool)
            rename(LINK, "elsewhere0")
            for _ in range(2):
                with pytest.raises(DiscoveryFailed, match=f"interface {LINK} does not exist"):
                    await seen(made, bool)
            rename("elsewhere0", LINK)
            assert await seen(made, bool) == {Sighting("192.0.2.2:7946", "mdns", hint="there")}

    with beside(cable.second, tmp_path, card("192.0.2.2:7946", "there")):
        on(cable.first, first)
