"""Children die with their node, however it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from viiwork_core.engines import environment, sitter
from viiwork_core.engines.lifeline import Sitter
from viiwork_core.engines.process import LineSink, start_group

DOOMED = Path(__file__).with_name("doomed_node.py")
SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")


def eventually(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not (holds := condition()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return holds


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A running node and the pid of its one backend."""
    ready = tmp_path / "pid"
    arguments = [sys.executable, str(DOOMED), f"doomed-{os.getpid()}", str(ready), *getattr(request, "param", ())]
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    try:
        assert eventually(ready.exists, 30)
        yield process, int(ready.read_text())
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("node", [(), ("--ignore-sigterm",)], indirect=True, ids=["polite", "stubborn"])
def test_a_killed_node_leaves_neither_child_nor_grandchild(node: tuple[subprocess.Popen[bytes], int]) -> None:
    process, backend = node
    family = [backend, *(child.pid for child in psutil.Process(backend).children(recursive=True))]
    sitters = [child.pid for child in psutil.Process(process.pid).children() if child.pid != backend]
    assert len(family) == 3
    assert len({os.getsid(pid) for pid in family}) == 2, "one grandchild has left the session"
    assert len(sitters) == 1
    process.kill()
    process.wait()
    assert eventually(lambda: not any(alive(pid) for pid in family), 5)
    assert eventually(lambda: not alive(sitters[0]), 5)


def test_the_signals_of_a_session_do_not_end_the_sitter_before_its_work_is_done() -> None:
    child = subprocess.Popen(SLEEP, start_new_session=True)
    script = [sys.executable, "-I", sitter.__file__, "calm"]
    try:
        with subprocess.Popen(script, stdin=subprocess.PIPE, start_new_session=True) as calm:
            assert calm.stdin is not None
            assert eventually(lambda: _ignores(calm.pid, signal.SIGTERM), 10)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.kill(calm.pid, number)
            calm.stdin.write(f"+{child.pid}\n".encode())
        assert calm.returncode == 0
        assert child.wait(5) == -signal.SIGTERM
    finally:
        child.kill()
        child.wait()


def test_a_sitter_that_was_killed_is_replaced_and_knows_the_groups() -> None:
    async def scene() -> tuple[int, int]:
        sitting = Sitter(f"twice-{os.getpid()}")
        async with sitting:
            child = await start_group(SLEEP, {}, LineSink(lambda _: None), sitting)
            first = sitting.pid
            assert first is not None
            os.kill(first, signal.SIGKILL)
            assert await asyncio.to_thread(eventually, lambda: sitting.pid != first, 20)
        # The node is gone without having ended the child: its pipe is closed.
        code = await asyncio.wait_for(child.wait(), 10)
        return code, child.pid

    with capture_logs() as logs:
        code, pid = asyncio.run(scene())
    assert code == -signal.SIGTERM
    assert not alive(pid)
    assert any("sitter ended" in entry["event"] for entry in logs)


def test_lines_add_and_remove_groups_and_damaged_ones_are_left_out() -> None:
    groups: set[int] = set()
    for line in (b"+200\n", b"+300\n", b"-200\n", b"+1\n", b"+0\n", b"-\n", b"*400\n", b"+5x\n", b""):
        sitter.note(groups, line)
    assert groups == {300}


def test_both_sides_agree_on_the_marker() -> None:
    assert sitter.MARKER == environment.MARKER


def _ignores(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    if not status.exists():  # not Linux: nothing tells, so the signals are sent at once
        return True
    mask = next(line for line in status.read_text().splitlines() if line.startswith("SigIgn"))
    return bool(int(mask.split()[1], 16) >> (number - 1) & 1)
