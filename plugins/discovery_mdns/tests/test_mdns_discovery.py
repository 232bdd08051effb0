"""Real mDNS on loopback: nodes see each other, whatever they are called and whatever else is announced there."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pluggy
import pytest
from zeroconf import ServiceInfo
from zeroconf.asyncio import AsyncZeroconf

import viiwork_discovery_mdns
from viiwork_core import Card, CommandOutput, Context, DiscoveryFailed, EngineRefused, Sighting, hookspecs
from viiwork_discovery_mdns.discovery import MdnsDiscovery
from viiwork_discovery_mdns.interfaces import Interface, interfaces
from viiwork_discovery_mdns.options import MdnsOptions
from viiwork_discovery_mdns.records import MAX_ADDRESSES, SERVICE
from viiwork_discovery_mdns.station import BROWSE_S

LOOPBACK = next((one.name for one in interfaces() if one.loopback), "")

WITHIN = 60.0


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers come at once here, and most tests look again until they have."""
    monkeypatch.setattr("viiwork_discovery_mdns.station.BROWSE_S", 0.3)


async def no_command(argv: Sequence[str]) -> CommandOutput:
    raise EngineRefused(f"no command is expected: {argv}")


async def no_digest(path: Path) -> str:
    raise EngineRefused(f"no digest is expected: {path}")


def source(options: MdnsOptions | None = None) -> MdnsDiscovery:
    context = Context("a", Path(), no_command, no_digest)
    return MdnsDiscovery(options or MdnsOptions(interface=LOOPBACK), context)


def card(number: int, *, node: str = "", mesh: str = "default") -> Card:
    """Of a node at 127.0.1.NUMBER."""
    return Card(node or f"node-{number}", f"viiwork-{number:016x}", f"127.0.1.{number}:7946", mesh)


@asynccontextmanager
async def announced(own: Card) -> AsyncIterator[MdnsDiscovery]:
    async with source() as made:
        await made.announce(own)
        yield made


def foreign(name: str, *addresses: str, port: int = 7946, text: bytes | dict[str, str] = b"") -> ServiceInfo:
    """What somebody else announces."""
    server, whole = f"{name}.local.", f"{name}.{SERVICE}"
    return ServiceInfo(SERVICE, whole, port=port, properties=text, server=server, parsed_addresses=list(addresses))


@asynccontextmanager
async def announcing(*infos: ServiceInfo) -> AsyncIterator[None]:
    async with AsyncZeroconf(interfaces=["127.0.0.1"]) as peer:
        for announcement in await asyncio.gather(*(peer.async_register_service(info) for info in infos)):
            await announcement
        yield


async def look(made: MdnsDiscovery) -> list[Sighting]:
    return [sighting async for sighting in made.sightings()]


async def seen(
    made: MdnsDiscovery, holds: Callable[[dict[str, Sighting]], object], within: float = WITHIN
) -> dict[str, Sighting]:
    """What it sees once that holds, by address."""
    deadline = time.monotonic() + within
    while True:
        found = {sighting.address: sighting for sighting in await look(made)}
        if holds(found):
            return found
        assert time.monotonic() < deadline, f"still seen: {found}"
        await asyncio.sleep(0.1)


def test_the_hook_offers_the_source_for_its_network() -> None:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(viiwork_discovery_mdns)
    (found,) = manager.hook.viiwork_register_discovery()
    assert (found.name, found.networks, found.Options) == ("mdns", {"lan"}, MdnsOptions)


@pytest.mark.parametrize(
    ("written", "wanted"),
    [("auto", None), (True, True), (False, False), ("on", True), ("off", False), ("no", False)],
)
def test_its_options_turn_it_on_and_off(written: object, wanted: bool | None) -> None:
    assert MdnsDiscovery.wanted(MdnsOptions.model_validate({"mdns": written})) is wanted


def test_two_nodes_see_each_other_and_not_themselves() -> None:
    async def run() -> None:
        async with announced(card(1)) as first, announced(card(2)) as second:
            assert await seen(first, len) == {"127.0.1.2:7946": Sighting("127.0.1.2:7946", "mdns", hint="node-2")}
            assert await seen(second, len) == {"127.0.1.1:7946": Sighting("127.0.1.1:7946", "mdns", hint="node-1")}

    asyncio.run(run())


def test_who_looks_without_an_announcement_sees_the_others() -> None:
    async def run() -> None:
        async with announced(card(1)), source() as silent:
            assert set(await seen(silent, len)) == {"127.0.1.1:7946"}

    asyncio.run(run())


def test_a_goodbye_is_heard() -> None:
    async def run() -> None:
        async with announced(card(1)) as first:
            async with announced(card(2)):
                await seen(first, len)
            await seen(first, lambda found: not found)

    asyncio.run(run())


def test_an_announcement_does_not_wait_for_its_end() -> None:
    """While it is announced, nothing but the loop's own work is in its way: no await is left."""

    async def run() -> None:
        async with source() as made:
            announcing = made.announce(card(1))
            with pytest.raises(StopIteration):
                announcing.send(None)

    asyncio.run(run())


def test_any_name_is_announced_and_read_whole() -> None:
    names = [
        "gpu 1",
        'the "big" one',
        "box.lan",
        "Größe-日本語",
        "x" * 80,
        "x" * 81,
        "日" * 80,
        ".",
        "..",
        "-",
        SERVICE,
    ]

    async def run() -> None:
        async with AsyncExitStack() as stack:
            for number, node in enumerate([*names, "a\tb"], 1):
                await stack.enter_async_context(announced(card(number, node=node)))
            other = await stack.enter_async_context(source())
            found = await seen(other, lambda found: len(found) > len(names))
        hints = [found[f"127.0.1.{number}:7946"].hint for number in range(1, len(found) + 1)]
        assert hints == [*names, None], "what cannot be shown is no name"

    asyncio.run(run())


def test_nodes_of_one_name_are_both_seen() -> None:
    async def run() -> None:
        async with announced(card(1, node="twin")), source() as other:
            await seen(other, len)
            async with announced(card(2, node="twin")) as second:
                found = await seen(other, lambda found: len(found) == 2)
                assert set(await seen(second, len)) == {"127.0.1.1:7946"}
        assert {(sighting.address, sighting.hint) for sighting in found.values()} == {
            ("127.0.1.1:7946", "twin"),
            ("127.0.1.2:7946", "twin"),
        }

    asyncio.run(run())


def test_nodes_of_one_name_that_start_together_are_both_seen() -> None:
    async def run() -> None:
        async with source() as other, source() as first, source() as second:
            await first.announce(card(1, node="twin"))
            await second.announce(card(2, node="twin"))
            await seen(other, lambda found: len(found) == 2)

    asyncio.run(run())


def test_nodes_of_another_mesh_are_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("viiwork_discovery_mdns.station.BROWSE_S", BROWSE_S)

    async def run() -> None:
        other, same = announced(card(2, mesh="work")), announced(card(3, mesh="home"))
        async with announced(card(1, mesh="home")) as home, other, same:
            assert set(await seen(home, len)) == {"127.0.1.3:7946"}

    asyncio.run(run())


def test_all_addresses_of_a_machine_are_reported_as_one_node() -> None:
    several = ("10.1.2.3", "127.0.1.9", "fd00::9", "127.0.1.8", "10.1.2.3")
    places = {"127.0.1.9:7946", "127.0.1.8:7946", "10.1.2.3:7946", "[fd00::9]:7946"}
    many = [f"10.0.{number}.1" for number in range(100)]

    async def run() -> dict[str | None, Sighting]:
        infos = [foreign(name, *ips, text={"node": name}) for name, ips in (("several", several), ("many", many))]
        async with announcing(*infos), source() as made:
            return {one.hint: one for one in (await seen(made, lambda found: len(found) == 2)).values()}

    found = asyncio.run(run())
    assert {found["several"].address, *found["several"].also} == places
    assert found["several"].address.startswith("127.0.1."), "what is in a network of this machine comes first"
    assert len({found["many"].address, *found["many"].also}) == MAX_ADDRESSES


def test_what_is_not_on_the_local_network_is_not_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("viiwork_discovery_mdns.station.BROWSE_S", BROWSE_S)

    of_v4 = ["203.0.113.9", "169.254.1.1", "224.0.0.1", "0.0.0.0", "255.255.255.255"]
    of_v6 = ["fe80::1", "2001:db8::1", "ff02::1", "::", "::ffff:10.0.0.1", "64:ff9b::a00:1"]
    odd = [foreign(f"odd-{number}", address) for number, address in enumerate(of_v4 + of_v6)]
    no_port = foreign("no-port", "127.0.1.8", port=0)

    async def run() -> dict[str, Sighting]:
        async with announcing(*odd, no_port, foreign("good", "fe80::1", "127.0.1.7")), source() as made:
            return await seen(made, len)

    assert asyncio.run(run()) == {"127.0.1.7:7946": Sighting("127.0.1.7:7946", "mdns")}


def test_a_text_that_makes_no_sense_costs_the_name_and_nothing_else() -> None:
    texts = [
        b"",
        b"\x04node",
        b"\x05node=",
        b"\x06other!",
        b"\x07node=\xc3\xbc",
        b"\x07NODE=\xc3\xbc",
        b"\x08node=\xff\xfe\xfd",
        b"\x08node=\x00\x07\n",
        b"\x00" * 50,
        b"\xff\xfe\xfd",
        b"\xf0node=" + b"x" * 20,
    ]
    odd = [foreign(f"odd-{number}", f"127.0.2.{number + 1}", text=text) for number, text in enumerate(texts)]

    async def run() -> dict[str, Sighting]:
        async with announcing(*odd), source() as made:
            return await seen(made, lambda found: len(found) == len(texts))

    found = asyncio.run(run())
    hints = [found[f"127.0.2.{number}:7946"].hint for number in range(1, len(texts))]
    assert hints == [None, None, None, None, "ü", "ü", None, None, None, None]


def test_names_without_a_host_cost_a_few_seconds_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their hosts' addresses are told to nobody."""
    monkeypatch.setattr("viiwork_discovery_mdns.station.RESOLVE_S", 1.0)
    names = [foreign(f"made-up-{number}") for number in range(80)]

    async def run() -> None:
        async with announced(card(1)), source() as made:
            await seen(made, len)
            async with announcing(*names):
                assert set(await look(made)) == {Sighting("127.0.1.1:7946", "mdns", hint="node-1")}

    asyncio.run(run())


def test_its_own_address_is_that_of_the_interface() -> None:
    assert asyncio.run(source().own_address()) == "127.0.0.1"


def test_an_interface_that_is_not_there_is_named_beside_those_that_are() -> None:
    async def run() -> None:
        missing = source(MdnsOptions(interface="no-such0"))
        for ask in (missing.own_address, lambda: missing.announce(card(1)), lambda: look(missing)):
            with pytest.raises(DiscoveryFailed, match=rf"interface no-such0 does not exist .*{LOOPBACK}") as refused:
                await ask()
            assert "mesh.mdns.interface" in refused.value.remedy

    asyncio.run(run())


def test_it_goes_on_where_the_interface_is_after_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with announced(card(1)) as first, announced(card(2)) as second:
            await seen(second, len)
            gone: list[Interface] = []
            with monkeypatch.context() as changed:
                changed.setattr("viiwork_discovery_mdns.interfaces.interfaces", lambda: gone)
                with pytest.raises(DiscoveryFailed, match="does not exist"):
                    await look(first)
            # It is not announced meanwhile, and then again.
            await seen(second, lambda found: not found)
            assert set(await seen(first, len)) == {"127.0.1.2:7946"}
            assert set(await seen(second, len)) == {"127.0.1.1:7946"}

    asyncio.run(run())
