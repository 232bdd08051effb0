"""What the source makes of tailscaled's answers, asked over a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

import pluggy
import pytest
from pydantic import ValidationError

import viiwork_discovery_tailscale
from viiwork_core import Card, CommandOutput, Context, DiscoveryFailed, EngineRefused, Sighting, hookspecs
from viiwork_discovery_tailscale import daemon
from viiwork_discovery_tailscale.daemon import Daemon
from viiwork_discovery_tailscale.discovery import TailscaleDiscovery
from viiwork_discovery_tailscale.options import DEFAULT_SOCKET, TailscaleOptions
from viiwork_discovery_tailscale.testing.tailscaled import OWN, Tailscaled, machine, needs_login, status

CARD = Card("me", "1", f"{OWN}:7946", "default")


async def no_command(argv: Sequence[str]) -> CommandOutput:
    raise EngineRefused(f"no command is expected: {argv}")


async def no_digest(path: Path) -> str:
    raise EngineRefused(f"no digest is expected: {path}")


def context(run: Callable[[Sequence[str]], Coroutine[Any, Any, CommandOutput]] = no_command) -> Context:
    return Context("me", Path(), run, no_digest)


def source(tailscaled: Tailscaled, **options: Any) -> TailscaleDiscovery:
    return TailscaleDiscovery(TailscaleOptions(socket=tailscaled.place, **options), context())


def seen(tailscaled: Tailscaled, **options: Any) -> list[Sighting]:
    async def look() -> list[Sighting]:
        async with source(tailscaled, **options) as opened:
            await opened.announce(CARD)
            return [sighting async for sighting in opened.sightings()]

    return asyncio.run(look())


def places(tailscaled: Tailscaled, **options: Any) -> list[str]:
    return [sighting.address for sighting in seen(tailscaled, **options)]


def test_who_announces_nothing_is_told_the_usual_port(tailscaled: Tailscaled) -> None:
    async def look() -> list[Sighting]:
        async with source(tailscaled) as opened:
            return [sighting async for sighting in opened.sightings()]

    tailscaled.says(status(machine("100.64.0.2")))
    assert [sighting.address for sighting in asyncio.run(look())] == ["100.64.0.2:7946"]


def own(tailscaled: Tailscaled, **options: Any) -> str | None:
    return asyncio.run(source(tailscaled, **options).own_address())


def refused(tailscaled: Tailscaled, **options: Any) -> str:
    """Both questions are refused for the same reason."""
    reasons = set()
    for ask in (own, seen):
        with pytest.raises(DiscoveryFailed) as caught:
            ask(tailscaled, **options)
        reasons.add(caught.value.message)
    (reason,) = reasons
    return reason


def test_the_hook_offers_the_source_for_its_network() -> None:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(viiwork_discovery_tailscale)
    (found,) = manager.hook.viiwork_register_discovery()
    assert (found.name, found.networks) == ("tailscale", {"tailnet"})


def test_a_machine_that_is_online_may_be_a_node(tailscaled: Tailscaled) -> None:
    tailscaled.says(status(machine("100.64.0.2", "fd7a:115c:a1e0::2", name="gpu-1")))
    assert seen(tailscaled) == [Sighting("100.64.0.2:7946", "tailscale", hint="gpu-1", certain=False)]
    assert own(tailscaled) == OWN
    assert set(tailscaled.asked) == {("/localapi/v0/status", "local-tailscaled.sock")}


@pytest.mark.parametrize(
    "peer",
    [
        machine("100.64.0.2", online=False),
        machine("100.64.0.2", Expired=True),
        machine("100.64.0.2", ShareeNode=True),
        machine("100.64.0.2", os="iOS"),
        machine("100.64.0.2", os="android"),
        machine("100.64.0.2", Tags=["tag:mullvad-exit-node"], ExitNodeOption=True),
        machine("fd7a:115c:a1e0::2"),  # no IPv4, and this node has one
        machine(),
        machine() | {"TailscaleIPs": None},
        machine("8.8.8.8"),
        machine("127.0.0.1"),
        machine("169.254.1.1", "::1", "fe80::1%eth0", "no address", ""),
        machine(OWN),
        {},
        machine("100.64.0.2") | {"TailscaleIPs": "100.64.0.2"},
        machine("100.64.0.2") | {"HostName": "x" * 9999},
        machine("100.64.0.2") | {"Tags": {"a": 1}},
        machine("100.64.0.2") | {"Online": "yes"},
    ],
)
def test_these_are_left_alone_and_harm_no_other(tailscaled: Tailscaled, peer: dict[str, Any]) -> None:
    tailscaled.says(status(machine("100.64.0.8"), peer, machine("100.64.0.9")))
    assert places(tailscaled) == ["100.64.0.8:7946", "100.64.0.9:7946"]


@pytest.mark.parametrize("peer", [None, 7, "text", []])
def test_what_is_no_machine_harms_no_other(tailscaled: Tailscaled, peer: Any) -> None:
    tailscaled.says(status(peer, machine("100.64.0.9")))
    assert places(tailscaled) == ["100.64.0.9:7946"]


def test_shared_in_machines_and_exits_of_the_tailnet_may_be_nodes(tailscaled: Tailscaled) -> None:
    friend = machine("100.101.1.1", name="friend", UserID=7, AltSharerUserID=8)
    exit_node = machine("100.64.0.3", name="home", ExitNodeOption=True)
    tailscaled.says(status(friend, exit_node))
    assert places(tailscaled) == ["100.101.1.1:7946", "100.64.0.3:7946"]


def test_a_tailnet_without_ipv4(tailscaled: Tailscaled) -> None:
    document = status(machine("fd7a:115c:a1e0::2"), machine("100.64.0.2"))
    tailscaled.says(document | {"Self": machine("fd7a:115c:a1e0::1")})
    assert own(tailscaled) == "fd7a:115c:a1e0::1"
    assert places(tailscaled) == ["[fd7a:115c:a1e0::2]:7946"]


def test_without_peers_nobody_is_seen(tailscaled: Tailscaled) -> None:
    for peers in (None, {}):
        tailscaled.says(status(Peer=peers))
        assert places(tailscaled) == []


def test_tags_choose(tailscaled: Tailscaled) -> None:
    tailscaled.says(status(machine("100.64.0.2", Tags=["tag:gpu", "tag:x"]), machine("100.64.0.3", Tags=["tag:web"])))
    assert places(tailscaled, tags=("tag:gpu",)) == ["100.64.0.2:7946"]
    assert len(places(tailscaled)) == 2


def test_other_ranges_for_other_control_servers(tailscaled: Tailscaled) -> None:
    tailscaled.says(status(machine("127.0.0.3"), machine("100.64.0.2"), own="127.0.0.2"))
    assert own(tailscaled, ranges=("127.0.0.0/8",)) == "127.0.0.2"
    assert places(tailscaled, ranges=("127.0.0.0/8",)) == ["127.0.0.3:7946"]


def test_a_tailnet_of_2000_machines(tailscaled: Tailscaled) -> None:
    peers = [machine(f"100.64.{n // 250 + 1}.{n % 250 + 1}", name=f"m{n}", online=n % 4 != 0) for n in range(2000)]
    tailscaled.says(status(*peers))
    assert len(tailscaled.body) > 1 << 20
    assert len(places(tailscaled)) == 1500


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (needs_login(), "tailscaled is in state 'NeedsLogin': this machine is logged out; run `tailscale up`"),
        (status(state="Stopped"), "Tailscale is switched off"),
        (status(state="NeedsMachineAuth"), "approval"),
        (status(state="Starting"), "tailscaled is in state 'Starting'"),
        (status() | {"Self": None}, "no address in the tailnet yet"),
        (status(own="10.0.0.1") | {"Self": machine("10.0.0.1")}, "no address in the tailnet yet"),
        (b"", "cannot be read"),
        (b"<html>hello", "begins '<html>hello'"),
        (b"[]", "cannot be read"),
        (b'{"BackendState": 3}', "cannot be read"),
        (b"\xff\xfe", "cannot be read"),
        (b"[" * 100_000, "cannot be read"),
    ],
)
def test_the_reason_is_told(tailscaled: Tailscaled, document: Any, reason: str) -> None:
    tailscaled.says(document)
    said = refused(tailscaled)
    assert reason in said
    assert "hush" not in said


def test_another_tailnet_is_not_looked_at(tailscaled: Tailscaled) -> None:
    for name in ("tail0.ts.net", "Me@example.com"):
        assert own(tailscaled, tailnet=name) == OWN
    assert "names 'work.ts.net'" in refused(tailscaled, tailnet="work.ts.net")


def test_an_answer_that_is_none(tailscaled: Tailscaled) -> None:
    tailscaled.code = 403
    assert refused(tailscaled).endswith(": answered 403")


def test_no_daemon(tmp_path: Path) -> None:
    found = TailscaleDiscovery(TailscaleOptions(socket=tmp_path / "none"), context())
    with pytest.raises(DiscoveryFailed, match="none: ") as caught:
        asyncio.run(found.own_address())
    assert "tailscale up" in caught.value.remedy


def test_a_silent_daemon_is_given_up(tailscaled: Tailscaled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "ANSWER_S", 0.2)
    tailscaled.silent = True
    assert refused(tailscaled)


def test_an_answer_has_a_limit(tailscaled: Tailscaled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon, "MAX_BYTES", 1 << 20)
    tailscaled.says(b"{" + b" " * (2 << 20))
    assert "over 1 MiB" in refused(tailscaled)


def test_it_follows_what_changes(tailscaled: Tailscaled) -> None:
    async def looks() -> list[list[str]]:
        found = []
        async with source(tailscaled) as opened:
            await opened.announce(CARD)
            for peers in ([], [machine("100.64.0.2")], [machine("100.64.0.2", online=False)]):
                tailscaled.says(status(*peers))
                found.append([sighting.address async for sighting in opened.sightings()])
        return found

    assert asyncio.run(looks()) == [[], ["100.64.0.2:7946"], []]


# Macs


class Mac:
    """What its commands say, by name; those that are not there cannot be started."""

    def __init__(self, **outputs: CommandOutput) -> None:
        self.outputs = outputs
        self.argv: list[Sequence[str]] = []

    async def run(self, argv: Sequence[str]) -> CommandOutput:
        self.argv.append(argv)
        name = Path(argv[2]).name
        if name not in self.outputs:
            raise EngineRefused(f"{name} is not installed")
        return self.outputs[name]

    def ask(self, fallback: Path, socket: Path = DEFAULT_SOCKET, platform: str = "darwin") -> bytes:
        found = Daemon(socket, context(self.run), platform=platform, fallback=fallback)
        return asyncio.run(found.status())


TEXT = json.dumps(status())


@pytest.fixture(autouse=True)
def no_real_daemon() -> None:
    """The default socket is asked before any other."""
    if DEFAULT_SOCKET.exists():
        pytest.skip("Tailscale runs here")


def test_a_mac_is_asked_at_its_own_socket(tailscaled: Tailscaled) -> None:
    mac = Mac()
    assert json.loads(mac.ask(tailscaled.place)) == status()
    assert mac.argv == []


def test_a_mac_without_a_socket_is_asked_by_the_command(tmp_path: Path) -> None:
    mac = Mac(tailscale=CommandOutput(0, f"Warning: client version differs\n{TEXT}\n"))
    assert json.loads(mac.ask(tmp_path / "none")) == status()
    assert mac.argv == [["/usr/bin/env", "TERM=dumb", "tailscale", "status", "--json"]]


def test_or_by_the_one_in_the_app(tmp_path: Path) -> None:
    mac = Mac(Tailscale=CommandOutput(0, TEXT))
    assert json.loads(mac.ask(tmp_path / "none")) == status()
    assert [argv[2] for argv in mac.argv] == list(daemon.COMMANDS)


def test_what_is_no_json_is_quoted(tmp_path: Path) -> None:
    mac = Mac(tailscale=CommandOutput(1, "The Tailscale GUI failed to start\n"))
    with pytest.raises(DiscoveryFailed, match="exit status 1, and it said 'The Tailscale GUI") as caught:
        mac.ask(tmp_path / "none")
    assert "Tailscale is not installed" in caught.value.message


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_socket_that_is_named_is_the_only_way(tmp_path: Path, tailscaled: Tailscaled, platform: str) -> None:
    mac = Mac(tailscale=CommandOutput(0, TEXT))
    with pytest.raises(DiscoveryFailed):
        mac.ask(tailscaled.place, socket=tmp_path / "none", platform=platform)
    assert mac.argv == tailscaled.asked == []


# Options


@pytest.mark.parametrize(("enabled", "wanted"), [("auto", None), (True, True), ("off", False)])
def test_enabled(enabled: Any, wanted: bool | None) -> None:
    assert TailscaleDiscovery.wanted(TailscaleOptions(enabled=enabled)) is wanted


@pytest.mark.parametrize(
    "options", [{"tags": ["gpu"]}, {"ranges": ["100.64.0.1/10"]}, {"enabled": "maybe"}, {"sock": "/s"}]
)
def test_bad_options(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        TailscaleOptions.model_validate(options)
