"""The inventory: detection, reading, and what is too old to be told."""

from __future__ import annotations

import asyncio
import platform
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Protocol

import pytest

from viiwork_core import CommandOutput, Vendor
from viiwork_core.engines.commands import Commands
from viiwork_core.engines.gpus.answers import Errand
from viiwork_core.engines.gpus.gpu import Gpu
from viiwork_core.engines.gpus.inventory import Inventory, detect
from viiwork_core.testing.fake_clock import FakeClock


class Tools(Protocol):
    calls: list[str]
    deadline: float

    def add(self, name: str, answers: dict[str, str]) -> None: ...
    def hang(self, name: str) -> None: ...
    async def run(self, argv: Sequence[str]) -> CommandOutput: ...


def machine(monkeypatch: pytest.MonkeyPatch, system: str, processor: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "machine", lambda: processor)


def found(tools: Tools, root: Path, choice: str = "auto") -> Vendor:
    return asyncio.run(detect(choice, tools.run, root=root))


def test_a_choice_is_not_looked_into(tools: Tools, tmp_path: Path) -> None:
    assert [found(tools, tmp_path, choice) for choice in ("nvidia", "amd", "apple", "none")] == [
        Vendor.NVIDIA,
        Vendor.AMD,
        Vendor.APPLE,
        Vendor.NONE,
    ]
    assert tools.calls == []


def test_a_device_file_is_enough(tools: Tools, tmp_path: Path) -> None:
    """A container that was handed a card by CDI has no tools, and a tool that hangs is not asked."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()
    assert found(tools, tmp_path) is not Vendor.NVIDIA
    (tmp_path / "dev/nvidia1").touch()
    tools.calls.clear()
    assert found(tools, tmp_path) is Vendor.NVIDIA
    assert tools.calls == []


def test_amd_cards_are_found_by_the_kernels_files(tools: Tools, gfx906: Path) -> None:
    assert found(tools, gfx906) is Vendor.AMD
    (gfx906 / "dev/nvidia0").touch()
    assert found(tools, gfx906) is Vendor.NVIDIA


def test_the_topology_of_a_host_is_not_yet_a_card_of_its_container(
    tools: Tools, gfx906: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, "linux", "x86_64")
    (gfx906 / "dev/kfd").unlink()
    assert found(tools, gfx906) is Vendor.NONE


def test_tools_are_asked_where_there_are_no_files(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine(monkeypatch, "linux", "x86_64")
    tools.add("rocm-smi", {"--version": "amd/version.txt"})
    tools.add("nvidia-smi", {"-L": "nvidia/no_driver.txt"})
    assert found(tools, tmp_path) is Vendor.AMD
    tools.add("nvidia-smi", {"-L": "nvidia/list.txt"})
    assert found(tools, tmp_path) is Vendor.NVIDIA


def test_hanging_tools_are_no_answer(tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(monkeypatch, "linux", "x86_64")
    tools.deadline = 0.3
    tools.hang("nvidia-smi")
    tools.hang("rocm-smi")
    assert found(tools, tmp_path) is Vendor.NONE
    assert tools.calls == ["nvidia-smi", "rocm-smi"]


@pytest.mark.parametrize(
    ("system", "processor", "vendor"),
    [("darwin", "arm64", Vendor.APPLE), ("darwin", "x86_64", Vendor.NONE), ("linux", "arm64", Vendor.NONE)],
)
def test_apple_is_told_by_the_machine(
    tools: Tools, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, processor: str, vendor: Vendor
) -> None:
    machine(monkeypatch, system, processor)
    assert found(tools, tmp_path) is vendor


def until_read(inventory: Inventory) -> None:
    """Let the inventory run until it has a reading."""

    async def scene() -> None:
        running = asyncio.create_task(inventory.run())
        deadline = time.monotonic() + 30
        while inventory.gpus() is None:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    asyncio.run(scene())


def test_cards_are_read_and_their_figures_grow_old(tools: Tools, gfx906: Path) -> None:
    clock = FakeClock()
    inventory = Inventory(Vendor.AMD, tools.run, clock=clock, root=gfx906)
    assert inventory.gpus() is None
    until_read(inventory)
    first = (inventory.gpus() or ())[0]
    assert (first.utilisation, first.memory_used, first.power, first.memory_total) == (98.0, 14336, 211.0, 16368)
    clock.advance(1000)
    old = (inventory.gpus() or ())[0]
    assert old == Gpu(0, Vendor.AMD, first.uuid, "vega20", "gfx906", "0000:03:00.0", memory_total=16368)
    assert asyncio.run(inventory.users()) == {4710: set(), 4711: {0}}


def test_a_source_without_an_answer_is_unknown_and_not_empty(tools: Tools, tmp_path: Path) -> None:
    inventory = Inventory(Vendor.AMD, tools.run, clock=FakeClock(), root=tmp_path)

    async def scene() -> None:
        running = asyncio.create_task(inventory.run())
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(running), 0.2)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    asyncio.run(scene())
    assert inventory.gpus() is None


def test_a_machine_without_cards_has_none_and_needs_no_loop(tools: Tools) -> None:
    inventory = Inventory(Vendor.NONE, tools.run, clock=FakeClock())
    asyncio.run(inventory.run())
    assert inventory.gpus() == ()
    assert asyncio.run(inventory.users()) is None


def test_who_waits_for_the_first_look_waits_no_longer(tools: Tools, gfx906: Path, tmp_path: Path) -> None:
    async def known_after(inventory: Inventory) -> int | None:
        running = asyncio.create_task(inventory.run())
        await inventory.settled()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
        gpus = inventory.gpus()
        return None if gpus is None else len(gpus)

    for vendor, root, cards in [(Vendor.AMD, gfx906, 1), (Vendor.AMD, tmp_path, None), (Vendor.NONE, tmp_path, 0)]:
        inventory = Inventory(vendor, tools.run, clock=FakeClock(), root=root)
        found = asyncio.run(known_after(inventory))
        assert (found is None) == (cards is None)
        assert bool(found) == bool(cards)


def test_one_look_is_enough_for_a_command(tools: Tools, gfx906: Path) -> None:
    inventory = Inventory(Vendor.AMD, tools.run, clock=FakeClock(), root=gfx906)
    asyncio.run(inventory.look())
    assert [gpu.target for gpu in inventory.gpus() or ()][:1] == ["gfx906"]


def test_this_machine_for_real() -> None:
    """Whatever it has: one vendor, and cards exactly where there is one."""
    run = Commands("test-node").run
    vendor = asyncio.run(detect("auto", run))
    inventory = Inventory(vendor, run, clock=FakeClock())
    until_read(inventory)
    assert bool(inventory.gpus()) == (vendor is not Vendor.NONE)


def test_a_read_that_hangs_costs_its_answer_and_no_second_thread() -> None:
    errand, release, sent = Errand(deadline=0.2), threading.Event(), []

    def hang() -> str:
        sent.append("hanging")
        release.wait(20)
        return "too late"

    async def scene() -> list[str | None]:
        late = [await errand.run(hang), await errand.run(hang)]
        release.set()
        deadline = time.monotonic() + 20
        while (answer := await errand.run(lambda: "prompt")) is None:
            assert time.monotonic() < deadline
            await asyncio.sleep(0.01)
        return [*late, answer]

    assert asyncio.run(scene()) == [None, None, "prompt"]
    assert sent == ["hanging"]
