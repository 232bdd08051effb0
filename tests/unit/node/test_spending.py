"""What keys have used, over a restart."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from viiwork_core.node import spending as module
from viiwork_core.node.spending import FILE, Spending
from viiwork_core.testing.fake_clock import FakeClock


def test_a_damaged_record_of_what_was_used_is_told_and_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b'{"day": 1, "own": {"a": -1}}')
    with capture_logs() as logs:
        spending = Spending(tmp_path, FakeClock())
        spending.restore()
    assert [line["event"] for line in logs] == ["what keys have used today is not known"]
    assert spending.allowance.used("a") == 0


def test_what_was_used_is_known_after_a_restart(tmp_path: Path) -> None:
    clock = FakeClock()
    before = Spending(tmp_path, clock)
    before.allowance.spend("a", 7)
    before.save()
    after = Spending(tmp_path, clock)
    after.restore()
    assert after.allowance.used("a") == 7


class WatchedClock(FakeClock):
    """Notes who asks: a table of the data loop's must be read on that loop."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[int] = set()

    def wall(self) -> float:
        self.threads.add(threading.get_ident())
        return super().wall()


async def _until(event: threading.Event) -> None:
    async with asyncio.timeout(5):
        while not event.is_set():  # noqa: ASYNC110  # set by another thread
            await asyncio.sleep(0)


def test_what_is_written_down_is_read_on_the_data_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAVE_S", 0.0)
    written, write = threading.Event(), module.write_atomically

    def told(path: Path, content: bytes) -> None:
        write(path, content)
        written.set()

    monkeypatch.setattr(module, "write_atomically", told)
    clock = WatchedClock()

    async def scene() -> None:
        spending = Spending(tmp_path, clock)
        spending.allowance.spend("a", 7)
        saving = asyncio.create_task(spending.save_often())
        await _until(written)
        saving.cancel()
        await asyncio.gather(saving, return_exceptions=True)

    asyncio.run(scene())
    assert clock.threads == {threading.get_ident()}


def test_the_last_save_follows_the_one_that_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SAVE_S", 0.0)
    begun, go_on, write, at_once = threading.Event(), threading.Event(), module.write_atomically, list[str]()

    def slow(path: Path, content: bytes) -> None:
        at_once.append("begins")
        if not begun.is_set():
            begun.set()
            go_on.wait(5)
        write(path, content)
        at_once.append("ends")

    monkeypatch.setattr(module, "write_atomically", slow)

    async def scene() -> None:
        spending = Spending(tmp_path, FakeClock())
        spending.allowance.spend("a", 7)
        saving = asyncio.create_task(spending.save_often())
        await _until(begun)
        spending.allowance.spend("a", 1)
        saving.cancel()
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(saving, return_exceptions=True)

    asyncio.run(scene())
    after = Spending(tmp_path, FakeClock())
    after.restore()
    assert at_once == ["begins", "ends"] * 2
    assert after.allowance.used("a") == 8
