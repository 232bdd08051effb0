"""NVIDIA cards: NVML, and nvidia-smi behind it."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import pytest

from viiwork_core import CommandOutput, Vendor
from viiwork_core.engines.gpus.gpu import POLL, TOOL_POLL, Gpu
from viiwork_core.engines.gpus.nvidia import FIELDS, Driver, Nvidia, lists_a_card, parse_gpus, parse_users

FIRST, SECOND = "GPU-5c1f3a0e-9d3b-4a27-8f5e-0b6f1f6f7a11", "GPU-e7a2c9d4-1b58-4c60-a3f7-92d0c4b8e522"
NAME = "NVIDIA GeForce RTX 3090"
CARDS = (
    Gpu(0, Vendor.NVIDIA, FIRST, NAME, memory_total=24576, memory_used=18324, utilisation=97.0, power=341.17),
    Gpu(1, Vendor.NVIDIA, SECOND, NAME, memory_total=24576, memory_used=3, utilisation=0.0, power=None),
)
USERS = {4711: {0, 1}, 4800: {1}}
SMI = {
    f"--query-gpu={FIELDS} --format=csv,noheader,nounits": "nvidia/cards.csv",
    "--query-gpu=index,uuid --format=csv,noheader": "nvidia/indices.csv",
    "--query-compute-apps=pid,gpu_uuid --format=csv,noheader": "nvidia/apps.csv",
}


class Tools(Protocol):
    calls: list[str]
    deadline: float

    def add(self, name: str, answers: dict[str, str]) -> None: ...
    def hang(self, name: str) -> None: ...
    async def run(self, argv: Sequence[str]) -> CommandOutput: ...


class NVMLError(Exception):
    pass


@dataclass
class Nvml:
    """The library's module with two cards, of which the second does not tell its power."""

    NVMLError: type[NVMLError] = NVMLError
    lost: set[int] = field(default_factory=set)
    inits: int = 0
    gone: bool = False

    def nvmlInit(self) -> None:  # noqa: N802  # the library's name, as are those below
        self.inits += 1

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        if self.gone:
            raise NVMLError
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:  # noqa: N802
        if index in self.lost:
            raise NVMLError
        return CARDS[index]

    def nvmlDeviceGetUUID(self, card: Gpu) -> str | None:  # noqa: N802
        return card.uuid

    def nvmlDeviceGetName(self, card: Gpu) -> str | None:  # noqa: N802
        return card.name

    def nvmlDeviceGetMemoryInfo(self, card: Gpu) -> Any:  # noqa: N802
        assert card.memory_total is not None
        assert card.memory_used is not None
        return SimpleNamespace(total=card.memory_total << 20, used=card.memory_used << 20)

    def nvmlDeviceGetUtilizationRates(self, card: Gpu) -> Any:  # noqa: N802
        assert card.utilisation is not None
        return SimpleNamespace(gpu=int(card.utilisation), memory=40)

    def nvmlDeviceGetPowerUsage(self, card: Gpu) -> int:  # noqa: N802
        if card.power is None:
            raise NVMLError
        return int(card.power * 1000)

    def nvmlDeviceGetComputeRunningProcesses(self, card: Gpu) -> list[Any]:  # noqa: N802
        return [SimpleNamespace(pid=pid) for pid, cards in USERS.items() if card.index in cards]


def missing() -> Any:
    raise ImportError


def test_a_list_of_cards_is_told_from_a_complaint(captures: Path) -> None:
    assert lists_a_card((captures / "nvidia/list.txt").read_text())
    assert not lists_a_card((captures / "nvidia/no_driver.txt").read_text())


def test_rows_of_figures_are_read_and_other_lines_are_not(captures: Path) -> None:
    text = (captures / "nvidia/cards.csv").read_text()
    assert parse_gpus(text) == CARDS
    assert parse_gpus("WARNING: infoROM is corrupted\n\n" + text + "Unable to determine the device handle\n") == CARDS
    assert parse_gpus((captures / "nvidia/no_driver.txt").read_text()) == ()


def test_a_figure_that_is_not_told_is_unknown() -> None:
    (card,) = parse_gpus(f"0, {FIRST}, NVIDIA GB10, [N/A], [Not Supported], [Unknown Error], nan\n")
    assert card == Gpu(0, Vendor.NVIDIA, FIRST, "NVIDIA GB10")


def test_processes_are_matched_to_cards_by_uuid(captures: Path) -> None:
    indices, apps = ((captures / f"nvidia/{name}.csv").read_text() for name in ("indices", "apps"))
    assert parse_users(indices, apps + f"[N/A], {FIRST}\n99, GPU-of-another-list\n") == USERS


def test_the_library_tells_cards_and_users() -> None:
    driver = Driver(Nvml)
    assert driver.gpus() == CARDS
    assert driver.users() == USERS


def test_a_card_that_fell_off_the_bus_keeps_its_place() -> None:
    driver = Driver(lambda: Nvml(lost={0}))
    assert driver.gpus() == (Gpu(0, Vendor.NVIDIA), CARDS[1])
    assert driver.users() == {4711: {1}, 4800: {1}}


def test_the_library_is_opened_once_and_again_after_it_failed() -> None:
    nvml = Nvml()
    driver = Driver(lambda: nvml)
    assert driver.gpus() == driver.gpus() == CARDS
    assert nvml.inits == 1
    nvml.gone = True
    assert driver.gpus() is None
    nvml.gone = False
    assert driver.gpus() == CARDS
    assert nvml.inits == 2


def test_the_real_library_answers_or_says_nothing() -> None:
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed")
    gpus = Driver(lambda: importlib.import_module("pynvml")).gpus()
    assert gpus is None or all(gpu.uuid for gpu in gpus)


def test_the_tool_answers_where_the_library_does_not(tools: Tools) -> None:
    tools.add("nvidia-smi", SMI)
    nvidia = Nvidia(tools.run, missing)
    assert asyncio.run(nvidia.read()) == CARDS
    assert nvidia.interval == TOOL_POLL
    assert asyncio.run(nvidia.users()) == USERS


def test_the_tool_is_not_started_where_the_library_answers(tools: Tools) -> None:
    nvidia = Nvidia(tools.run, Nvml)
    assert asyncio.run(nvidia.read()) == CARDS
    assert asyncio.run(nvidia.users()) == USERS
    assert (nvidia.interval, tools.calls) == (POLL, [])


@pytest.mark.parametrize("how", ["missing", "hanging", "no driver"])
def test_a_tool_that_cannot_tell_leaves_it_unknown(tools: Tools, how: str) -> None:
    tools.deadline = 0.3
    if how == "hanging":
        tools.hang("nvidia-smi")
    elif how == "no driver":
        tools.add("nvidia-smi", dict.fromkeys(SMI, "nvidia/no_driver.txt"))
    nvidia = Nvidia(tools.run, missing)
    assert asyncio.run(nvidia.read()) is None
    assert not asyncio.run(nvidia.users())
