"""AMD cards: the kernel's files, and rocm-smi for what they leave out."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from viiwork_core import CommandOutput, Vendor
from viiwork_core.engines.gpus.amd import (
    Amd,
    fill,
    gfx_target,
    parse_users,
    read_nodes,
    read_users,
    smi_order,
)
from viiwork_core.engines.gpus.gpu import POLL, TOOL_POLL, Gpu

CARDS = (
    Gpu(
        0,
        Vendor.AMD,
        "GPU-2180a33f6fc21c65",
        name="AMD Radeon VII",
        target="gfx906",
        pci="0000:03:00.0",
        memory_total=16368,
        memory_used=14336,
        utilisation=98.0,
        power=211.0,
    ),
    Gpu(
        1,
        Vendor.AMD,
        "GPU-823fe0b435352341",
        name="vega20",
        target="gfx906",
        pci="0000:06:00.0",
        memory_total=32752,
        memory_used=10,
        utilisation=0.0,
        power=17.0,
    ),
)
CODENAMES = (replace(CARDS[0], name="vega20"), CARDS[1])
SMI = {
    "--showproductname --showbus --showuse --showpower --showmeminfo vram --json": "amd/cards.json",
    "--showpidgpus": "amd/showpidgpus.txt",
}


class Tools(Protocol):
    calls: list[str]
    deadline: float

    def add(self, name: str, answers: dict[str, str]) -> None: ...
    def hang(self, name: str) -> None: ...
    async def run(self, argv: Sequence[str]) -> CommandOutput: ...


def test_the_kernels_files_tell_all_but_the_name(tools: Tools, gfx906: Path) -> None:
    amd = Amd(tools.run, gfx906)
    assert asyncio.run(amd.read()) == CODENAMES


def test_the_name_comes_from_the_tool_which_is_asked_no_more_than_it_helps(tools: Tools, gfx906: Path) -> None:
    tools.add("rocm-smi", SMI)
    amd = Amd(tools.run, gfx906)

    async def scene() -> None:
        # The second card has no name anywhere: the tool helped once, and helps no more.
        for calls, interval in [(1, TOOL_POLL), (2, TOOL_POLL), (2, POLL)]:
            assert await amd.read() == CARDS
            assert (len(tools.calls), amd.interval) == (calls, interval)

    asyncio.run(scene())


def test_a_name_of_the_kernels_own_wins(tools: Tools, gfx906: Path) -> None:
    for device in (gfx906 / "sys/bus/pci/devices").iterdir():
        (device / "product_name").write_text("Instinct MI60\n")
    amd = Amd(tools.run, gfx906)
    assert asyncio.run(amd.read()) == tuple(replace(card, name="Instinct MI60") for card in CARDS)
    assert tools.calls == []


def test_figures_that_the_kernel_does_not_tell_are_asked_of_the_tool_or_unknown(tools: Tools, gfx906: Path) -> None:
    for device in (gfx906 / "sys/bus/pci/devices").iterdir():
        shutil.rmtree(device / "hwmon")
        (device / "gpu_busy_percent").unlink()
        (device / "mem_info_vram_used").write_text("damaged\n")
    unknown = tuple(replace(card, power=None, utilisation=None, memory_used=None) for card in CODENAMES)
    assert asyncio.run(Amd(tools.run, gfx906).read()) == unknown
    tools.add("rocm-smi", SMI)
    assert asyncio.run(Amd(tools.run, gfx906).read()) == CARDS


def test_newer_kernels_call_the_sensor_of_power_otherwise(tools: Tools, gfx906: Path) -> None:
    for sensor in (gfx906 / "sys/bus/pci/devices").glob("*/hwmon/*/power1_average"):
        sensor.rename(sensor.with_name("power1_input"))
    assert asyncio.run(Amd(tools.run, gfx906).read()) == CODENAMES


def test_newer_releases_of_the_tool_write_other_keys(captures: Path) -> None:
    text = (captures / "amd/cards.json").read_text()
    newer = text.replace("Average Graphics", "Current Socket Graphics").replace("Card Series", "Card series")
    bare = tuple(Gpu(card.index, Vendor.AMD, pci=card.pci) for card in CARDS)
    named, _ = fill(bare, newer)
    assert (named.name, named.power, named.utilisation, named.memory_total) == ("AMD Radeon VII", 211.0, 98.0, 16368)
    assert fill(bare, newer) == fill(bare, text)


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"card0": 5}', '{"system": {"a": "b"}}', "{}\n{}"])
def test_an_output_of_another_shape_fills_no_gap(text: str) -> None:
    assert fill(CARDS, text) == CARDS


def test_a_processor_and_a_card_that_is_not_ours_are_no_cards(gfx906: Path) -> None:
    nodes = gfx906 / "sys/class/kfd/kfd/topology/nodes"
    assert [node.gpu_id for node in read_nodes(gfx906)] == [26273, 13518]
    (nodes / "1/properties").unlink()  # the kernel refuses to tell a container of it
    assert [node.gpu_id for node in read_nodes(gfx906)] == [13518]


def test_ten_nodes_are_counted_as_numbers(gfx906: Path) -> None:
    nodes = gfx906 / "sys/class/kfd/kfd/topology/nodes"
    (nodes / "1").rename(nodes / "10")
    assert [node.gpu_id for node in read_nodes(gfx906)] == [13518, 26273]


@pytest.mark.parametrize(
    ("version", "name"),
    [(90006, "gfx906"), (90010, "gfx90a"), (90402, "gfx942"), (100302, "gfx1032"), (110501, "gfx1151"), (0, None)],
)
def test_targets(version: int, name: str | None) -> None:
    assert gfx_target(version) == name


def test_the_kernel_tells_who_computes_where(gfx906: Path) -> None:
    assert read_users(gfx906) == {4710: set(), 4711: {0}}


def test_the_tool_tells_it_where_the_kernel_does_not(tools: Tools, gfx906: Path) -> None:
    shutil.rmtree(gfx906 / "sys/class/kfd/kfd/proc")
    assert asyncio.run(Amd(tools.run, gfx906).users()) is None
    tools.add("rocm-smi", SMI)
    assert asyncio.run(Amd(tools.run, gfx906).users()) == {4710: set(), 4711: {0, 1}, 4800: {1}}


def test_the_tool_counts_cards_by_pci_address(gfx906: Path, captures: Path) -> None:
    first, second = read_nodes(gfx906)
    order = smi_order([second, first])
    assert order == (1, 0)
    assert parse_users((captures / "amd/showpidgpus.txt").read_text(), order)[4800] == {0}


def test_cards_of_a_process_may_stand_on_several_lines() -> None:
    text = "PID 7 is using 3 DRM device(s):\n0 \n1 2\n=====\n1\n"
    assert parse_users(text, (0, 1, 2)) == {7: {0, 1, 2}}
    assert parse_users("No KFD PIDs currently running\n", (0,)) == {}


def test_a_hanging_tool_costs_only_what_it_would_have_told(tools: Tools, gfx906: Path) -> None:
    tools.deadline = 0.3
    tools.hang("rocm-smi")
    amd = Amd(tools.run, gfx906)
    assert asyncio.run(amd.read()) == CODENAMES
    assert asyncio.run(amd.read()) == CODENAMES
    assert len(tools.calls) == 1


def test_a_machine_without_amd_cards_gives_no_answer(tools: Tools, tmp_path: Path) -> None:
    amd = Amd(tools.run, tmp_path)
    assert asyncio.run(amd.read()) is None
    assert asyncio.run(amd.users()) is None


@pytest.mark.skipif(not os.path.isdir("/sys/class/kfd"), reason="this machine has no AMD card")  # noqa: PTH112
def test_this_machines_own_cards(tools: Tools) -> None:
    cards = asyncio.run(Amd(tools.run).read())
    assert cards is not None
    assert all(card.pci for card in cards)
