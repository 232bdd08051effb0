"""What takes long runs in threads: the loop's own thread hashes, encrypts, packs, reads, writes and deletes nothing.

A loop stalls for as long as a call on its thread takes, so that is what is looked at, and no time: which C functions
Python calls on that thread, as its profiler tells.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import pytest

from viiwork_core import (
    CacheFile,
    CacheTransfer,
    Context,
    EngineRefused,
    NoOptions,
    Saved,
    Segment,
    SegmentKind,
    SessionRef,
    Spec,
)
from viiwork_core.clock import SystemClock
from viiwork_core.contracts.engine import Address
from viiwork_core.engines.slots import SlotBook
from viiwork_core.engines.states import BackendState, BackendView
from viiwork_core.kvshare.incoming import Reception
from viiwork_core.kvshare.moving import Moving
from viiwork_core.kvshare.receiving import receive
from viiwork_core.kvshare.replicas import ReplicaStore
from viiwork_core.kvshare.sealing import measure
from viiwork_core.kvshare.sending import Delivery, Save, Sender
from viiwork_core.kvshare.shared_model import SharedModel
from viiwork_core.kvshare.streams import SealedFile
from viiwork_core.kvshare.turns import Turn, Usage
from viiwork_core.kvshare.upgraded import answer, give

if TYPE_CHECKING:
    from conftest import Bench

pytestmark = pytest.mark.anyio

T = TypeVar("T")
MIB = 1 << 20

LONG = {
    *("update", "encrypt", "decrypt", "compress", "decompress"),
    *("read", "pread", "readinto", "write", "fsync", "rename", "unlink", "link"),
    *("encrypt_into", "decrypt_into", "recv_into", "sendall"),
}
"""C functions that take as long as a file is large, or as a disk or the other end of a connection is slow."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@contextmanager
def long_calls() -> Iterator[set[str]]:
    """Those of this thread, each as MODULE-OR-TYPE.NAME."""
    found: set[str] = set()

    def told(frame: FrameType, event: str, called: Any) -> None:
        # An import reads a file as well, once.
        if event == "c_call" and called.__name__ in LONG and "importlib" not in frame.f_code.co_filename:
            found.add(f"{getattr(called, '__module__', None)}.{called.__qualname__}")

    sys.setprofile(told)
    try:
        yield found
    finally:
        sys.setprofile(None)


def noise(size: int) -> bytes:
    return random.Random(0).randbytes(size)


def file(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def segments(_model: str, path: Path) -> tuple[Segment, ...]:
    return (Segment(0, path.stat().st_size, SegmentKind.ROWS),)


def test_what_is_looked_for_is_seen(tmp_path: Path) -> None:
    path = file(tmp_path, "a", noise(MIB))
    one, other = socket.socketpair()
    with one, other, long_calls() as found:
        measure(path)
        path.unlink()
        one.sendall(b"a")
        other.recv_into(bytearray(1))
    assert {name.rpartition(".")[2] for name in found} >= {"readinto", "update", "unlink", "sendall", "recv_into"}


async def test_a_whole_file_and_a_delta_are_sent_and_received_off_the_loop(bench: Bench, tmp_path: Path) -> None:
    store = ReplicaStore(tmp_path / "replicas", 64 * MIB, SystemClock()).open()
    ended: asyncio.Queue[Delivery[str]] = asyncio.Queue()

    async def put(_: str, stream: AsyncIterator[bytes]) -> None:
        await receive(stream, Reception(store, accepts=lambda _: None), bench.key)

    sender = Sender[str](
        put, bench.key, SystemClock(), max_bytes=64 * MIB, layout=segments, store=store, ended=ended.put_nowait
    )
    data = noise(9 * MIB)
    changed = data[: 5 * MIB] + bytes(100) + data[5 * MIB :]
    saves = [file(tmp_path, f"{turn}.save", part) for turn, part in ((1, data), (2, data + data[:MIB]), (3, changed))]
    sizes = [path.stat().st_size for path in saves]
    with long_calls() as found:
        running = asyncio.create_task(sender.run())
        for turn, path in enumerate(saves, start=1):
            sender.offer(Save(path, bench.label(turn=turn), "rig1", sizes[turn - 1]))
            assert (await ended.get()).error is None
        await anyio.to_thread.run_sync(store.forget, bench.session)
        running.cancel()
        await asyncio.wait([running])
    assert found == set()
    assert sender.counts.bytes < 16 * MIB, "the later ones went as deltas"


async def test_past_http_they_are_sent_and_received_off_the_loop(bench: Bench, tmp_path: Path) -> None:
    """The connection's own calls too: each may wait for the other end."""
    store = ReplicaStore(tmp_path / "replicas", 64 * MIB, SystemClock()).open()
    ended: asyncio.Queue[Delivery[str]] = asyncio.Queue()

    async def take(connection: socket.socket) -> None:
        await receive(connection, Reception(store, accepts=lambda _: None), bench.key)
        await answer(connection, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")

    async def put(_: str, stream: SealedFile) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            one = socket.create_connection(server.getsockname())
            other = server.accept()[0]
        with one, other:
            taking = asyncio.create_task(take(other))
            await anyio.to_thread.run_sync(one.recv, 1 << 10)
            assert (await give(one, stream)).status == 200
            one.close()
            await taking

    sender = Sender[str](
        put, bench.key, SystemClock(), max_bytes=64 * MIB, layout=segments, store=store, ended=ended.put_nowait
    )
    data = noise(9 * MIB)
    saves = [file(tmp_path, f"{turn}.save", part) for turn, part in ((1, data), (2, data + data[:MIB]))]
    sizes = [path.stat().st_size for path in saves]
    with long_calls() as found:
        running = asyncio.create_task(sender.run())
        for turn, path in enumerate(saves, start=1):
            sender.offer(Save(path, bench.label(turn=turn), "rig1", sizes[turn - 1]))
            assert (await ended.get()).error is None
        running.cancel()
        await asyncio.wait([running])
    assert found == set()
    assert sender.counts.bytes < 11 * MIB, "the second one went as a delta"


class Files(CacheTransfer):
    """An engine whose cache file is a count in words."""

    engine = "files"
    fails = False

    async def fingerprint(self, spec: Spec, address: Address) -> Mapping[str, str]:
        return {"model": "m"}

    async def save(self, spec: Spec, address: Address, session: SessionRef, name: str) -> Saved:
        assert spec.cache_dir is not None
        await anyio.to_thread.run_sync((spec.cache_dir / name).write_text, json.dumps(500))
        if self.fails:
            raise EngineRefused("no")
        return Saved(tokens=500, bytes=3)

    async def restore(self, spec: Spec, address: Address, session: SessionRef, name: str) -> int:
        return 500

    async def holds(self, spec: Spec, address: Address, session: SessionRef) -> int | None:
        return None

    def read(self, path: Path) -> CacheFile:
        return CacheFile(int(path.read_text()), None, ())


async def test_a_save_and_an_import_touch_the_disk_off_the_loop(bench: Bench, tmp_path: Path) -> None:
    store = ReplicaStore(tmp_path / "replicas", MIB, SystemClock()).open()
    replica = bench.keep(store, b"500")
    spec = Spec("tiny", 0, 1, None, 4096, 2, cache_dir=tmp_path / "engine")
    (tmp_path / "engine").mkdir()
    cache = Files(NoOptions(), Context("a", tmp_path, _never, _never))
    shared, moving, turn = SharedModel("agents", 100, cache, {"tiny/0": spec}), Moving(SystemClock()), _turn(bench)
    moving.follow({"tiny": shared})
    with long_calls() as found:
        assert await moving.restore(shared, turn, replica, store, 60.0) == 100
        assert (await moving.save(shared, turn, Usage(450, 0, 50), 2, 60.0)).tokens == 500
        cache.fails = True
        with pytest.raises(EngineRefused):
            await moving.save(shared, turn, Usage(450, 0, 50), 3, 60.0)
    assert found == set()
    assert [path.name for path in (tmp_path / "engine").iterdir()] == [f"{bench.session}.2.save"]


async def _never(_: object) -> Any:
    raise EngineRefused("not expected")


def _turn(bench: Bench) -> Turn:
    book = SlotBook(SystemClock())
    address = Address("127.0.0.1", 1)
    book.see(BackendView("tiny/0", "tiny", "files", BackendState.HEALTHY, 1, 2, address=address, fingerprint="f"))
    reservation = book.reserve("tiny/0")
    assert reservation is not None
    return Turn(bench.session, reservation, "/v1/chat/completions", b"{}")
