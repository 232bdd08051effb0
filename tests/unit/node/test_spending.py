"""What keys have used, over a restart."""

from __future__ import annotations

from pathlib import Path

from structlog.testing import capture_logs

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
    before._save()
    after = Spending(tmp_path, clock)
    after.restore()
    assert after.allowance.used("a") == 7
