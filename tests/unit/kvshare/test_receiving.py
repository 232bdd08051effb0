"""A stream becomes a replica when it is whole and right, and leaves nothing otherwise."""

from __future__ import annotations

import asyncio
import os
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING

import anyio
import pytest

from viiwork_core.errors import CacheRefused, FingerprintMismatch, StoreFull
from viiwork_core.kvshare.incoming import Reception, require_same
from viiwork_core.kvshare.receiving import receive
from viiwork_core.kvshare.replicas import ReplicaStore
from viiwork_core.kvshare.sealing import BLOCK, TransferHeader
from viiwork_core.kvshare.streams import describe, sealed_file

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Bench, ManualClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def anything(_: TransferHeader) -> None:
    return


async def test_a_stream_becomes_a_replica(bench: Bench, tmp_path: Path, clock: ManualClock) -> None:
    store = ReplicaStore(tmp_path / "replicas", 10 << 20, clock).open()
    data = os.urandom(3 * BLOCK + 17)
    stream = b"".join(bench.pieces(data))
    small_reads = (stream[at : at + 40_000] for at in range(0, len(stream), 40_000))
    kept = await receive(bench.stream(small_reads), Reception(store, anything), bench.key)
    assert kept == store.find("tiny", bench.session)
    assert kept.path.read_bytes() == data
    assert kept.header == bench.stored(data)


@pytest.mark.parametrize(
    "damage", ["cut", "empty", "header only", "flip", "trailing", "key", "longer", "shorter", "hash"]
)
async def test_whatever_is_wrong_leaves_nothing(bench: Bench, store: ReplicaStore, damage: str) -> None:
    data = os.urandom(1000)
    header = bench.header(data)
    pieces = {
        "longer": lambda: bench.sealed(header, [data, b"!"], data),
        "shorter": lambda: bench.sealed(header, [data[:-1]], data),
        "hash": lambda: bench.sealed(header, [data], b"other"),
    }.get(damage, lambda: bench.pieces(data))()
    if damage == "cut":
        pieces[-1] = pieces[-1][:-1]
    elif damage == "flip":
        pieces[-1] = pieces[-1][:-1] + bytes([pieces[-1][-1] ^ 1])
    elif damage == "trailing":
        pieces.append(b"!")
    elif damage in ("empty", "header only"):
        pieces = pieces[: ["empty", "header only"].index(damage)]
    key = bytes(32) if damage == "key" else bench.key
    with pytest.raises(CacheRefused):
        await receive(bench.stream(pieces), Reception(store, anything), key)
    assert list(store._folder.iterdir()) == []
    assert store.used == 0


async def test_a_transfer_that_is_not_accepted_writes_nothing_and_reads_no_further(
    bench: Bench, tmp_path: Path, clock: ManualClock
) -> None:
    store = ReplicaStore(tmp_path / "replicas", 10 << 20, clock).open()
    taken: list[int] = []

    async def pieces() -> AsyncIterator[bytes]:
        for number, piece in enumerate(bench.pieces(bytes(5 * BLOCK), group="others")):
            taken.append(number)
            yield piece

    def accepts(header: TransferHeader) -> None:
        assert list(store._folder.iterdir()) == []
        require_same(header, group="agents", fingerprint="f" * 64)

    with pytest.raises(FingerprintMismatch, match="group agents here, the replica is of others"):
        await receive(pieces(), Reception(store, accepts), bench.key)
    assert list(store._folder.iterdir()) == []
    assert taken == [0, 1]


async def test_what_differs_is_named(bench: Bench) -> None:
    header = bench.header(b"a")
    require_same(header, group="agents", fingerprint="f" * 64)
    with pytest.raises(FingerprintMismatch, match="another fingerprint"):
        require_same(header, group="agents", fingerprint="e" * 64)
    with pytest.raises(FingerprintMismatch, match="not shared"):
        require_same(header, group=None, fingerprint=None)


async def test_an_older_turn_and_a_full_store_refuse(bench: Bench, store: ReplicaStore) -> None:
    kept = bench.keep(store, b"two", turn=2)
    with pytest.raises(CacheRefused, match="not newer"):
        await receive(bench.stream(bench.pieces(b"one")), Reception(store, anything), bench.key)
    with pytest.raises(StoreFull):
        await receive(bench.stream(bench.pieces(bytes(10_001), turn=3)), Reception(store, anything), bench.key)
    assert store.find("tiny", bench.session) == kept


async def test_a_connection_that_breaks_passes_its_error_on_and_leaves_nothing(
    bench: Bench, tmp_path: Path, clock: ManualClock
) -> None:
    store = ReplicaStore(tmp_path / "replicas", 10 << 20, clock).open()

    async def broken() -> AsyncIterator[bytes]:
        for piece in bench.pieces(bytes(3 * BLOCK))[:3]:
            yield piece
        assert bench.files(store._folder) == {".tmp"}
        raise ConnectionResetError("the sender left")

    with pytest.raises(ConnectionResetError):
        await receive(broken(), Reception(store, anything), bench.key)
    assert list(store._folder.iterdir()) == []
    assert store.used == 0


@pytest.mark.parametrize("native", [True, False])
async def test_a_cancelled_transfer_leaves_nothing(
    bench: Bench, tmp_path: Path, clock: ManualClock, native: bool
) -> None:
    store = ReplicaStore(tmp_path / "replicas", 10 << 20, clock).open()

    async def stuck() -> AsyncIterator[bytes]:
        for piece in bench.pieces(bytes(3 * BLOCK))[:3]:
            yield piece
        await anyio.sleep_forever()

    async def transfer() -> None:
        with scope:
            await receive(stuck(), Reception(store, anything), bench.key)

    scope = anyio.CancelScope()
    task = asyncio.create_task(transfer())
    await bench.until(lambda: store.used > 0 and bench.files(store._folder) == {".tmp"})
    if native:
        task.cancel()
    else:
        scope.cancel()
    await asyncio.wait([task])
    assert task.cancelled() is native
    assert list(store._folder.iterdir()) == []
    assert store.used == 0


async def test_sending_and_receiving_64_mib_hold_a_few(bench: Bench, tmp_path: Path, clock: ManualClock) -> None:
    store = ReplicaStore(tmp_path / "replicas", 128 << 20, clock).open()
    saved = tmp_path / "saved.bin"
    with saved.open("wb") as file:
        for _ in range(64):
            file.write(os.urandom(BLOCK))
    tracemalloc.start()
    try:
        header = await anyio.to_thread.run_sync(describe, saved, bench.label())
        async with aclosing(sealed_file(saved, bench.key, header)) as stream:
            kept = await receive(stream, Reception(store, anything), bench.key)
        await anyio.to_thread.run_sync(store.verified_copy, kept, tmp_path / "engine.bin")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert kept.header.length == 64 * BLOCK
    assert peak < 24 * BLOCK, f"{peak / BLOCK:.1f} MiB at the peak"
