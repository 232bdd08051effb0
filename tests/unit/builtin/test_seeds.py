"""Discovery by a list."""

from __future__ import annotations

import asyncio
from pathlib import Path

from viiwork_core import Card, CommandOutput, Context, Sighting
from viiwork_core.builtin.seeds import Seeds, SeedsOptions


async def nothing(_: object) -> CommandOutput:
    return CommandOutput(0, "")


async def digest(_: Path) -> str:
    return ""


def test_each_address_is_reported_each_time(tmp_path: Path) -> None:
    options = SeedsOptions(addresses=("192.0.2.1:7946", "[2001:db8::1]:7946"))

    async def look() -> list[Sighting]:
        async with Seeds(options, Context("n", tmp_path, nothing, digest)) as seeds:
            await seeds.announce(Card("n", "id", "192.0.2.9:7946", "default"))
            return [sighting for _ in range(2) async for sighting in seeds.sightings()]

    expected = [Sighting("192.0.2.1:7946", "seeds"), Sighting("[2001:db8::1]:7946", "seeds")]
    assert asyncio.run(look()) == expected * 2
