"""Is a backend on its own cards?"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from viiwork_core.engines.environment import clean_environment
from viiwork_core.engines.gpus.amd import parse_users as rocm_users
from viiwork_core.engines.gpus.nvidia import parse_users as nvidia_users
from viiwork_core.engines.gpus.whereabouts import Whereabouts, process_tree, whereabouts
from viiwork_core.engines.process import Child, LineSink, start_group

RIGHT, FEWER, WRONG, UNKNOWN = Whereabouts.RIGHT, Whereabouts.FEWER, Whereabouts.WRONG, Whereabouts.UNKNOWN

FAMILY = """
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
if os.fork() == 0:
    if os.fork() == 0:
        print("orphan", os.getpid(), flush=True)
        time.sleep(600)
    os._exit(0)
os.wait()
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("gpus", "tree", "expected"),
    [
        ((0, 1), {4711}, RIGHT),
        ((1, 0), {4711, 4800, 1}, RIGHT),
        ((1,), {4800}, RIGHT),
        ((0,), {4800}, WRONG),
        ((0,), {4711}, WRONG),  # its own and a neighbour's
        ((0, 1), {4800}, FEWER),  # on one of its two
        ((), {4800}, WRONG),  # meant for the processor
        ((0,), {12}, UNKNOWN),  # none of its processes is visible
        ((), {12}, UNKNOWN),
    ],
)
def test_the_cards_of_a_process_tree(
    captures: Path, gpus: tuple[int, ...], tree: set[int], expected: Whereabouts
) -> None:
    indices, apps = ((captures / f"nvidia/{name}.csv").read_text() for name in ("indices", "apps"))
    assert whereabouts(gpus, tree, nvidia_users(indices, apps)) is expected
    assert whereabouts(gpus, tree, rocm_users((captures / "amd/showpidgpus.txt").read_text(), (0, 1))) is expected


def test_a_process_without_queues_is_on_no_card(captures: Path) -> None:
    users = rocm_users((captures / "amd/showpidgpus.txt").read_text(), (0, 1))
    assert whereabouts((0,), {4710}, users) is UNKNOWN


def test_nobody_can_say() -> None:
    assert whereabouts((0,), {4711}, None) is UNKNOWN


def test_the_tree_has_descendants_and_orphans_and_no_stranger() -> None:
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    async def scene() -> tuple[Child[LineSink], int, frozenset[int]]:
        lines: asyncio.Queue[str] = asyncio.Queue()
        child = await start_group((sys.executable, "-c", FAMILY), clean_environment(), LineSink(lines.put_nowait))
        try:
            orphan = int((await lines.get()).removeprefix("orphan "))
            deadline = time.monotonic() + 20
            # The leader, its child and the orphan; the process between is reaped at once.
            while len(tree := process_tree(child.pid)) != 3:
                assert time.monotonic() < deadline
                await asyncio.sleep(0.01)
            return child, orphan, tree
        finally:
            await child.end()

    try:
        child, orphan, tree = asyncio.run(scene())
    finally:
        stranger.kill()
        stranger.wait()
    assert {child.pid, orphan} < tree
    assert not {stranger.pid, os.getpid()} & tree
