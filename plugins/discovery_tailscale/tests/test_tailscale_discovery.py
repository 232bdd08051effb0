"""The source registers itself, and says what to do instead of pretending to look."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import anyio
import pluggy
import pytest

import viiwork_discovery_tailscale
from viiwork_core import Card, CommandOutput, Context, EngineRefused, NoOptions, NotBuiltYet, hookspecs
from viiwork_discovery_tailscale.discovery import TailscaleDiscovery


async def no_command(argv: Sequence[str]) -> CommandOutput:
    raise EngineRefused(f"no command is expected: {argv}")


async def no_digest(path: Path) -> str:
    raise EngineRefused(f"no digest is expected: {path}")


@pytest.fixture
def source(tmp_path: Path) -> TailscaleDiscovery:
    return TailscaleDiscovery(NoOptions(), Context("a", tmp_path, no_command, no_digest))


def test_the_hook_offers_the_source_for_its_network() -> None:
    manager = pluggy.PluginManager(hookspecs.PROJECT)
    manager.add_hookspecs(hookspecs)
    manager.register(viiwork_discovery_tailscale)
    (found,) = manager.hook.viiwork_register_discovery()
    assert (found.name, found.networks) == ("tailscale", {"tailnet"})


def test_opening_it_says_what_to_set_instead(source: TailscaleDiscovery) -> None:
    async def opened() -> None:
        async with source:
            pass

    with pytest.raises(NotBuiltYet, match=r"mesh\.network: seeds.*mesh\.seeds.*mesh\.network: none") as refused:
        anyio.run(opened)
    assert refused.value.remedy


def test_nothing_is_announced_or_found_in_silence(source: TailscaleDiscovery) -> None:
    with pytest.raises(NotBuiltYet):
        anyio.run(source.announce, Card("a", "1", "127.0.0.1:7946", "home"))
    with pytest.raises(NotBuiltYet):
        source.sightings()
