"""Which discovery tells this node's address, and how long it is asked."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
from structlog.testing import capture_logs

from viiwork_core.builtin.policies import LeastBusy
from viiwork_core.builtin.seeds import Seeds, SeedsOptions
from viiwork_core.clock import SystemClock
from viiwork_core.config.load import parse_config
from viiwork_core.contracts.context import CommandOutput, Context
from viiwork_core.contracts.discovery import Card, Discovery, Sighting
from viiwork_core.contracts.options import NoOptions
from viiwork_core.errors import ConfigError, DiscoveryFailed
from viiwork_core.node import own_address
from viiwork_core.node.addresses import LOOPBACK, Places, bind, served_elsewhere
from viiwork_core.node.own_address import awaited_address, telling
from viiwork_core.registry.options import Resolved
from viiwork_core.testing.fake_clock import FakeClock

TAILNET, LAN = "127.0.0.81", "127.0.0.82"


async def no_command(argv: Sequence[str]) -> CommandOutput:
    raise NotImplementedError


async def no_digest(path: Path) -> str:
    raise NotImplementedError


class Tailnet(Discovery):
    """Says what stands in `says`: an address, None, or an error."""

    name = "tails"
    networks = frozenset({"tailnet"})
    says: ClassVar[list[str | Exception | None]] = []
    """The last one is said for ever."""

    async def own_address(self) -> str | None:
        said = self.says[0] if len(self.says) == 1 else self.says.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    async def announce(self, card: Card) -> None:
        return None

    async def sightings(self) -> AsyncIterator[Sighting]:
        return
        yield


class Lan(Tailnet):
    name = "lans"
    networks = frozenset({"lan"})
    says: ClassVar[list[str | Exception | None]] = []


class Mute(Tailnet):
    """Has no say in it."""

    name = "mute"
    own_address = Discovery.own_address


def resolved(*classes: type[Discovery]) -> Resolved:
    pairs = [(cls, SeedsOptions() if cls is Seeds else NoOptions()) for cls in classes]
    return Resolved((), LeastBusy, NoOptions(), tuple(pairs))


def places(folder: Path, mesh: str, *classes: type[Discovery], api: str = "{port: 0}") -> Places:
    text = f"node: {{state_dir: {folder}}}\napi: {api}\nmesh: {mesh}"
    return bind(parse_config(text, {"HOME": "/h"}), resolved(*classes))


def hosts(made: Places) -> list[str]:
    return [one.getsockname()[0] for one in made.sockets]


@pytest.mark.parametrize(
    ("mesh", "host"),
    [
        ("{network: tailnet}", TAILNET),
        ("{network: lan}", LAN),
        ("{network: tails}", TAILNET),
        ("{}", TAILNET),
        ("{network: lan, seeds: ['127.0.0.9:7946']}", LAN),
        ("{network: tailnet, advertise: 127.0.0.83}", "127.0.0.83"),
        ("{network: seeds, seeds: ['127.0.0.9:7946']}", LOOPBACK),
    ],
)
def test_what_is_known_is_bound_at_once(tmp_path: Path, mesh: str, host: str) -> None:
    Tailnet.says, Lan.says = [TAILNET], [LAN]
    made = places(tmp_path, mesh, Mute, Lan, Tailnet, Seeds)
    assert (made.mesh_host, made.awaited, made.in_mesh) == (host, False, True)
    assert hosts(made) == list(dict.fromkeys([LOOPBACK, host]))
    made.close()


@pytest.mark.parametrize("said", [DiscoveryFailed("logged out"), "no address", RuntimeError("a defect")])
def test_what_is_not_known_yet_is_awaited(tmp_path: Path, said: str | Exception) -> None:
    Tailnet.says, Lan.says = [said], [LAN]
    made = places(tmp_path, "{network: tailnet}", Lan, Tailnet)
    assert (made.mesh_host, made.awaited, made.in_mesh, hosts(made)) == (None, True, True, [LOOPBACK])
    made.add(TAILNET)
    assert made.later is not None
    later = made.later.get_nowait()
    assert later.getsockname() == (TAILNET, made.port)
    later.close()
    made.close()


def test_an_awaited_address_with_a_taken_port_is_told(tmp_path: Path) -> None:
    Tailnet.says = [DiscoveryFailed("logged out")]
    made = places(tmp_path, "{network: tailnet}", Tailnet)
    with socket.socket() as other:
        other.bind((TAILNET, made.port))
        other.listen()
        with pytest.raises(ConfigError, match=f"cannot listen on {TAILNET} port {made.port}"):
            made.add(TAILNET)
    made.add(TAILNET)
    made.close()
    assert made.later is not None
    assert made.later.empty()


def test_a_written_host_is_the_only_one(tmp_path: Path) -> None:
    Tailnet.says = [DiscoveryFailed("logged out")]
    made = places(tmp_path, "{network: tailnet}", Tailnet, api="{port: 0, host: 127.0.0.84}")
    made.add(TAILNET)
    assert (hosts(made), made.later, made.awaited) == (["127.0.0.84"], None, True)
    made.close()


def test_another_server_listens_where_it_listens(tmp_path: Path) -> None:
    Tailnet.says = [DiscoveryFailed("logged out")]
    config = parse_config(f"node: {{state_dir: {tmp_path}}}\nmesh: {{network: tailnet}}", {"HOME": "/h"})
    made = served_elsewhere(config, resolved(Tailnet))
    assert (made.mesh_host, made.awaited, made.later) == (None, True, None)


def test_nobody_to_ask(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"mesh\.advertise: is not set, and no seed tells"):
        places(tmp_path, "{network: tailnet}", Mute)


def test_no_mesh_asks_nobody(tmp_path: Path) -> None:
    Tailnet.says = [RuntimeError("asked")]
    made = places(tmp_path, "{network: none}", Tailnet)
    assert (made.mesh_host, made.awaited, made.in_mesh, hosts(made)) == (None, False, False, [LOOPBACK])
    made.close()


def source(cls: type[Discovery]) -> Discovery:
    return cls(NoOptions(), Context("me", Path(), no_command, no_digest))


def test_who_is_asked() -> None:
    mute, lan, tailnet = map(source, (Mute, Lan, Tailnet))
    everyone = [mute, lan, tailnet]
    assert telling(None, everyone) == [tailnet, lan]
    assert telling("lan", everyone) == [lan]
    assert telling("tails", everyone) == [tailnet]
    assert telling("seeds", everyone) == [lan, tailnet]


def test_it_is_asked_until_it_answers_and_each_reason_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_address, "AGAIN_S", 0.0)
    out, starting = DiscoveryFailed("logged out", remedy="log in"), DiscoveryFailed("starting")
    Tailnet.says, Lan.says = [out, out, starting, starting, TAILNET], [LAN]
    with capture_logs() as logs:
        sources = [source(Lan), source(Tailnet)]
        assert asyncio.run(awaited_address("tailnet", sources, clock=SystemClock())) == TAILNET
    assert [(line["reason"], line["remedy"]) for line in logs] == [("logged out", "log in"), ("starting", None)]


def test_without_a_network_another_one_will_do_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_address, "AGAIN_S", 0.0)
    clock = FakeClock()

    class Slow(Tailnet):
        asked = 0

        async def own_address(self) -> str | None:
            type(self).asked += 1
            clock.advance(4.0)
            raise DiscoveryFailed("starting")

    Lan.says = [LAN]
    assert asyncio.run(awaited_address(None, [source(Lan), source(Slow)], clock=clock)) == LAN
    assert Slow.asked == 4


def test_a_stuck_source_holds_up_no_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_address, "FIRST_S", 0.05)

    class Stuck(Tailnet):
        async def own_address(self) -> str | None:
            await asyncio.Event().wait()
            return None

    made = places(tmp_path, "{network: tailnet}", Stuck)
    assert (made.mesh_host, made.in_mesh) == (None, True)
    made.close()
