"""The GPU of an Apple chip."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import pytest

from viiwork_core import CommandOutput, Vendor
from viiwork_core.engines.gpus.apple import Apple, parse_gpus
from viiwork_core.engines.gpus.gpu import Gpu

CARD = Gpu(0, Vendor.APPLE, name="Apple M2 Max", memory_total=65536)


class Tools(Protocol):
    calls: list[str]

    def add(self, name: str, answers: dict[str, str]) -> None: ...
    async def run(self, argv: Sequence[str]) -> CommandOutput: ...


def test_it_is_read_once_and_what_it_does_is_unknown(tools: Tools) -> None:
    apple = Apple(tools.run)
    assert asyncio.run(apple.read()) is None
    tools.add("system_profiler", {"SPDisplaysDataType -json": "apple/displays.json"})
    tools.add("sysctl", {"hw.memsize": "apple/memsize.txt"})
    assert asyncio.run(apple.read()) == (CARD,)
    tools.calls.clear()
    assert asyncio.run(apple.read()) == (CARD,)
    assert asyncio.run(apple.users()) is None
    assert tools.calls == []


def test_without_sysctl_only_the_memory_is_unknown(captures: Path) -> None:
    displays = (captures / "apple/displays.json").read_text()
    assert parse_gpus(displays, "") == (Gpu(0, Vendor.APPLE, name="Apple M2 Max"),)


def test_other_makers_cards_are_not_counted(captures: Path) -> None:
    displays = (captures / "apple/displays.json").read_text()
    assert parse_gpus(displays.replace("sppci_vendor_Apple", "sppci_vendor_amd"), "") == ()


@pytest.mark.parametrize("text", ["", "{", "{}", '{"SPDisplaysDataType": 5}', '{"SPDisplaysDataType": ["x"]}'])
def test_an_output_of_another_shape_is_no_card(text: str) -> None:
    assert parse_gpus(text, "hw.memsize: 1") == ()
