"""The sender: one transfer a session, the newest turn, bounded, and every file it took over is deleted."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import pytest
from aiohttp import ClientError, ClientSession, web

from viiwork_core.errors import BackendFailed, CacheRefused, ViiworkError
from viiwork_core.kvshare.incoming import Reception
from viiwork_core.kvshare.pace import Limits
from viiwork_core.kvshare.receiving import receive
from viiwork_core.kvshare.replicas import ReplicaStore
from viiwork_core.kvshare.sealing import BLOCK
from viiwork_core.kvshare.sending import Delivery, LinkCounts, Save, Sender
from viiwork_core.kvshare.streams import SealedFile, describe, sealed_file

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Bench, ManualClock

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Target:
    """The other member, in memory: transfers wait at `gate` and are opened into `store`."""

    def __init__(self, bench: Bench, store: ReplicaStore) -> None:
        self.bench, self.store = bench, store
        self.gate = asyncio.Event()
        self.started: list[str] = []
        self.fail: Exception | None = None

    async def put(self, target: str, stream: AsyncIterator[bytes]) -> None:
        self.started.append(target)
        await self.gate.wait()
        if self.fail is not None:
            raise self.fail
        await receive(stream, Reception(self.store, accepts=lambda _: None), self.bench.key)


class Lab:
    """A sender that runs, with what it reported."""

    def __init__(self, bench: Bench, folder: Path, sender: Sender[str], ended: list[Delivery[str]]) -> None:
        self.bench, self.folder, self.sender, self.ended = bench, folder, sender, ended

    def offer(self, target: str, data: bytes = b"abc", **label: Any) -> Path:
        path = self.folder / f"{target}.bin"
        path.write_bytes(data)
        self.sender.offer(Save(path, self.bench.label(**label), target, len(data)))
        return path

    def errors(self) -> dict[str, str | None]:
        return {delivery.save.target: delivery.error for delivery in self.ended}


@pytest.fixture
def other(bench: Bench, store: ReplicaStore) -> Target:
    return Target(bench, store)


@asynccontextmanager
async def running(bench: Bench, folder: Path, clock: ManualClock, put: Any, **limits: Any) -> AsyncIterator[Lab]:
    saves = folder / "saves"
    saves.mkdir()
    ended: list[Delivery[str]] = []
    sender = Sender[str](put, bench.key, clock, ended=ended.append, **{"max_bytes": 1 << 20, **limits})
    task = asyncio.create_task(sender.run())
    try:
        yield Lab(bench, saves, sender, ended)
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert list(saves.iterdir()) == [], "the sender left files behind"


async def test_an_offered_save_arrives_and_its_file_goes(
    bench: Bench, tmp_path: Path, clock: ManualClock, other: Target
) -> None:
    other.gate.set()
    async with running(bench, tmp_path, clock, other.put) as lab:
        path = lab.offer("rig1", b"abc", turn=4, tokens=77)
        await bench.until(lambda: lab.ended != [])
        assert path.exists(), "the next turn is a delta against it"
        kept = other.store.find("tiny", bench.session)
        assert kept is not None
        assert (kept.path.read_bytes(), kept.header.turn, kept.header.tokens) == (b"abc", 4, 77)
        counts = lab.sender.counts
        assert (counts.sent, counts.failed, counts.dropped) == (1, 0, 0)
        assert lab.ended[0].error is None
        assert counts.bytes == lab.ended[0].bytes > 3
        assert counts.links == {"rig1": LinkCounts(sent=1, bytes=counts.bytes)}


async def test_a_session_is_sent_once_at_a_time_and_the_newest_waiting_turn_wins(
    bench: Bench, tmp_path: Path, clock: ManualClock, other: Target
) -> None:
    async with running(bench, tmp_path, clock, other.put, limits=lambda _: Limits(4)) as lab:
        lab.offer("one", turn=1)
        await bench.until(lambda: other.started == ["one"])
        lab.offer("two", turn=2)
        lab.offer("three", turn=3)
        lab.offer("late", turn=2)
        lab.offer("beside", session="0b" * 16)
        await bench.until(lambda: other.started == ["one", "beside"])
        assert {name: link.under_way for name, link in lab.sender.counts.links.items()} == {"one": 1, "beside": 1}
        other.gate.set()
        await bench.until(lambda: len(lab.ended) == 5)
        assert other.started == ["one", "beside", "three"]
        assert lab.errors() == {
            "one": None,
            "two": "a newer turn was saved",
            "three": None,
            "late": "a save of a turn as new is on its way already",
            "beside": None,
        }
        assert (lab.sender.counts.sent, lab.sender.counts.dropped) == (3, 2)


async def test_transfers_at_once_are_bounded(bench: Bench, tmp_path: Path, clock: ManualClock, other: Target) -> None:
    async with running(bench, tmp_path, clock, other.put, limits=lambda _: Limits(2)) as lab:
        for number in range(5):
            lab.offer(f"n{number}", session=f"{number:032x}")
        await bench.until(lambda: len(other.started) == 2)
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        assert sorted(other.started) == ["n0", "n1"]
        other.gate.set()
        await bench.until(lambda: lab.sender.counts.sent == 5)


async def test_what_is_short_goes_first(bench: Bench, tmp_path: Path, clock: ManualClock, other: Target) -> None:
    async with running(bench, tmp_path, clock, other.put) as lab:
        lab.offer("first", b"x" * 100, session="1" * 32)
        await bench.until(lambda: other.started == ["first"])
        for number, (target, size) in enumerate(
            (("long", 900), ("short", 10), ("middle", 300), ("alike", 300)), start=2
        ):
            lab.offer(target, b"x" * size, session=str(number) * 32)
        other.gate.set()
        await bench.until(lambda: len(lab.ended) == 5)
        assert other.started == ["first", "short", "middle", "alike", "long"]


async def test_saves_that_wait_are_bounded_by_their_bytes(
    bench: Bench, tmp_path: Path, clock: ManualClock, other: Target
) -> None:
    async with running(bench, tmp_path, clock, other.put, max_bytes=25) as lab:
        lab.offer("runs", bytes(10), session="00" * 16)
        await bench.until(lambda: other.started == ["runs"])
        for number in (1, 2, 3):
            lab.offer(f"n{number}", bytes(10), session=f"{number:032x}")
        lab.offer("huge", bytes(26), session="0f" * 16)
        assert {target for target, error in lab.errors().items() if error and "over their room" in error} == {
            "n1",
            "n2",
            "n3",
            "huge",
        }
        lab.offer("fits", bytes(10), session="0e" * 16)
        other.gate.set()
        await bench.until(lambda: lab.sender.counts.sent == 2)


@pytest.mark.parametrize("failure", [BackendFailed("rig1 answered 507"), ConnectionResetError("gone")])
async def test_a_failed_transfer_is_counted_said_and_cleaned_up(
    bench: Bench, tmp_path: Path, clock: ManualClock, other: Target, failure: Exception
) -> None:
    other.fail = failure
    other.gate.set()
    async with running(bench, tmp_path, clock, other.put) as lab:
        lab.offer("rig1")
        await bench.until(lambda: lab.ended != [])
        assert lab.errors() == {"rig1": str(failure)}
        other.fail = None
        lab.offer("again", turn=2)
        await bench.until(lambda: len(lab.ended) == 2)
        assert (lab.sender.counts.sent, lab.sender.counts.failed) == (1, 1)


@pytest.mark.parametrize(("begun", "tries"), [(True, 4), (False, 1)])
async def test_a_member_that_comes_back_after_a_break_gets_it_and_one_that_was_not_there_is_left(
    bench: Bench, tmp_path: Path, clock: ManualClock, other: Target, begun: bool, tries: int
) -> None:
    other.gate.set()
    asked: list[str] = []

    async def put(target: str, stream: SealedFile) -> None:
        asked.append(target)
        if len(asked) == 1 and begun:
            await anext(stream)
        if len(asked) < 3:
            raise BackendFailed("connection refused")
        await other.put(target, stream)

    async with running(bench, tmp_path, clock, put) as lab:
        lab.offer("rig1", os.urandom(1000))
        await bench.until(lambda: lab.ended != [])
    assert len(asked) == tries, "the third only asks how much is there"
    assert lab.errors() == {"rig1": None if begun else "connection refused"}


async def test_files_that_are_gone_or_empty_fail_and_nothing_else(
    bench: Bench, tmp_path: Path, clock: ManualClock, other: Target
) -> None:
    other.gate.set()
    async with running(bench, tmp_path, clock, other.put) as lab:
        lab.offer("gone").unlink()
        lab.offer("empty", b"", session="0e" * 16)
        lab.offer("fine", session="0f" * 16)
        await bench.until(lambda: len(lab.ended) == 3)
        errors = lab.errors()
        assert errors["fine"] is None
        assert "empty file" in str(errors["empty"])
        assert "No such file" in str(errors["gone"])
        assert other.started == ["fine"]


async def test_a_target_that_stays_silent_is_given_up(
    bench: Bench, tmp_path: Path, clock: ManualClock, other: Target
) -> None:
    async with running(bench, tmp_path, clock, other.put, timeout=0.05) as lab:
        lab.offer("rig1")
        await bench.until(lambda: lab.ended != [])
        assert "not accepted within" in str(lab.errors()["rig1"])


async def test_stopping_tells_about_every_save(bench: Bench, tmp_path: Path, clock: ManualClock, other: Target) -> None:
    async with running(bench, tmp_path, clock, other.put) as lab:
        lab.offer("runs")
        await bench.until(lambda: other.started == ["runs"])
        lab.offer("waits", session="0f" * 16)
    assert lab.errors() == {"runs": "the node stops", "waits": "the node stops"}


async def test_a_file_that_changes_while_it_is_sent_ends_the_stream_unfinished(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "saved.bin"
    for changed in (b"x" * (2 * BLOCK), b"x" * (4 * BLOCK)):
        path.write_bytes(b"x" * (3 * BLOCK))
        header = describe(path, bench.label())
        path.write_bytes(changed)
        async with aclosing(sealed_file(path, bench.key, header)) as stream:
            with pytest.raises(CacheRefused, match="changed"):
                [piece async for piece in stream]


async def test_closing_waits_for_a_read_under_way_and_ends_the_stream(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "saved.bin"
    path.write_bytes(os.urandom(4 * BLOCK))
    stream = sealed_file(path, bench.key, describe(path, bench.label()))
    await anext(stream)

    async def read() -> None:
        await anext(stream, None)

    reads = [asyncio.create_task(read()) for _ in range(2)]
    await asyncio.sleep(0)
    reads[0].cancel()
    await stream.aclose()
    await stream.aclose()
    await asyncio.wait(reads)
    with pytest.raises(StopAsyncIteration):
        await anext(stream)


@asynccontextmanager
async def served(handler: Any) -> AsyncIterator[str]:
    app = web.Application()
    app.router.add_put("/replica", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/replica"
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("refuse", [False, True])
async def test_over_a_real_socket(bench: Bench, tmp_path: Path, clock: ManualClock, refuse: bool) -> None:
    store = ReplicaStore(tmp_path / "replicas", 64 << 20, clock).open()
    data = os.urandom(24 * BLOCK + 5)

    async def handle(request: web.Request) -> web.Response:
        if refuse:
            return web.Response(status=409, text="no")
        try:
            await receive(request.content.iter_any(), Reception(store, accepts=lambda _: None), bench.key)
        except ViiworkError as error:
            return web.Response(status=error.status, text=error.message)
        return web.Response(status=204)

    async with served(handle) as address, ClientSession() as session:

        async def put(target: str, stream: AsyncIterator[bytes]) -> None:
            try:
                async with session.put(target, data=stream) as response:
                    if response.status != 204:
                        raise BackendFailed(f"{target} answered {response.status}")
            except ClientError as error:
                raise BackendFailed(str(error)) from error

        async with running(bench, tmp_path, clock, put, max_bytes=1 << 30) as lab:
            (lab.folder / "saved").write_bytes(data)
            lab.sender.offer(Save(lab.folder / "saved", bench.label(), address, len(data)))
            await bench.until(lambda: lab.ended != [])
            error = lab.ended[0].error
    kept = store.find("tiny", bench.session)
    if refuse:
        assert error is not None
        assert kept is None
    else:
        assert error is None
        assert kept is not None
        assert kept.path.read_bytes() == data
