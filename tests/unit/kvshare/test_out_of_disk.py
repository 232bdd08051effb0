"""A receiver whose disk is really full refuses, says so, leaves nothing, and takes replicas again when it has room."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from viiwork_core.errors import StoreFull
from viiwork_core.kvshare.incoming import Reception
from viiwork_core.kvshare.receiving import receive
from viiwork_core.kvshare.replicas import ReplicaStore

if TYPE_CHECKING:
    from conftest import Bench, ManualClock

pytestmark = pytest.mark.anyio

ROOM = 2 << 20
"""Bytes of the disk; the store itself may take more."""

Disk = Callable[[Path], AbstractContextManager[None]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@contextmanager
def mounted(folder: Path) -> Iterator[None]:
    """A small disk at `folder`."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        pytest.skip("a disk of its own needs Linux and root")
    options = f"size={ROOM},mode=0700"
    command = ["mount", "-t", "tmpfs", "-o", options, "viiwork-test", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"mount is refused here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


@contextmanager
def limited(_: Path) -> Iterator[None]:
    """No file of this process grows beyond ROOM."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("disk", [mounted, limited])
async def test_a_full_disk_refuses(bench: Bench, tmp_path: Path, clock: ManualClock, disk: Disk) -> None:
    folder = tmp_path / "replicas"
    folder.mkdir(mode=0o700)
    with disk(folder):
        store = ReplicaStore(folder, 100 << 20, clock, keep_partials_s=60).open()

        async def take(size: int, turn: int) -> bytes:
            pieces = bench.pieces(os.urandom(size), turn=turn)
            kept = await receive(bench.stream(pieces), Reception(store, accepts=lambda _: None), bench.key)
            return kept.path.read_bytes()

        small = await take(1000, turn=1)
        with pytest.raises(StoreFull, match="the disk is full"):
            await take(ROOM + 1000, turn=2)
        kept = store.find("tiny", bench.session)
        assert kept is not None
        assert (kept.header.turn, kept.path.read_bytes()) == (1, small), "what was there stays"
        assert {file.suffix for file in folder.iterdir()} == {".kv", ".json"}
        assert store.used == 1000
        assert len(await take(1 << 20, turn=3)) == 1 << 20
