"""A session's next turn goes as a delta, a broken transfer goes on, and the file is whole and right or not there."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest

from viiwork_core.errors import BackendFailed, BaseMissing, CacheRefused, ResumeFrom
from viiwork_core.kvshare import sending
from viiwork_core.kvshare.delta import delta_blocks
from viiwork_core.kvshare.incoming import Reception
from viiwork_core.kvshare.pace import Limits, Pace
from viiwork_core.kvshare.receiving import receive
from viiwork_core.kvshare.replicas import ReplicaStore
from viiwork_core.kvshare.sealing import PART
from viiwork_core.kvshare.sending import Delivery, Save, Sender

if TYPE_CHECKING:
    from conftest import Bench, ManualClock

pytestmark = pytest.mark.anyio

MIB = 1 << 20


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "PAUSE_S", 0.02)


def noise(size: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size)


class Pair:
    """A sender and the store that its saves go to."""

    def __init__(self, bench: Bench, folder: Path, clock: ManualClock, keep_partials_s: float = 60.0) -> None:
        self.bench, self.folder = bench, folder
        self.store = ReplicaStore(folder / "replicas", 64 * MIB, clock, keep_partials_s=keep_partials_s).open()
        self.ended: list[Delivery[str]] = []
        self.uploads: list[int] = []
        """Bytes of each."""

        self.break_after: list[int] = []
        """For each of the next uploads: how many of its bytes arrive."""

        self.answers_lost = 0
        """Of the next uploads that are taken."""

        self.when_lost: Callable[[], object] = list

    async def put(self, _: str, stream: AsyncIterator[bytes]) -> None:
        number = len(self.uploads)
        self.uploads.append(0)
        most = self.break_after.pop(0) if self.break_after else 1 << 30

        async def arriving() -> AsyncIterator[bytes]:
            left = most
            async for piece in stream:
                part = piece[:left]
                left -= len(part)
                self.uploads[number] += len(part)
                yield part
                if not left:
                    raise ConnectionResetError("the sender left")

        try:
            await self.take(arriving())
        except ConnectionResetError as error:
            raise BackendFailed("the connection broke") from error
        if self.answers_lost:
            self.answers_lost -= 1
            self.when_lost()
            raise BackendFailed("the connection broke")

    async def take(self, stream: AsyncIterator[bytes], key: bytes | None = None) -> None:
        await receive(stream, Reception(self.store, lambda _: None), key or self.bench.key)

    async def send(self, sender: Sender[str], data: bytes, turn: int, target: str = "rig1") -> Delivery[str]:
        path = self.folder / f"{turn}.save"
        path.write_bytes(data)
        count = len(self.ended)
        sender.offer(Save(path, self.bench.label(turn=turn), target, len(data)))
        await self.bench.until(lambda: len(self.ended) > count)
        return self.ended[-1]

    def kept(self) -> bytes:
        replica = self.store.find("tiny", self.bench.session)
        assert replica is not None
        data = replica.path.read_bytes()
        assert (replica.header.length, replica.header.blake3) == (len(data), self.bench.blake3(data))
        return data

    def saves(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*.save"))

    async def until_saves(self, names: list[str]) -> None:
        await self.bench.until(lambda: self.saves() == names)


@pytest.fixture
def pair(bench: Bench, tmp_path: Path, clock: ManualClock) -> Pair:
    return Pair(bench, tmp_path, clock)


@asynccontextmanager
async def running(pair: Pair, clock: ManualClock, **options: Any) -> AsyncIterator[Sender[str]]:
    options = {"max_bytes": 64 * MIB, **options}
    sender = Sender[str](pair.put, pair.bench.key, clock, ended=pair.ended.append, **options)
    task = asyncio.create_task(sender.run())
    try:
        yield sender
    finally:
        task.cancel()
        await asyncio.wait([task])
        assert pair.saves() == [], "the sender left files behind"


async def test_turns_after_the_first_go_as_deltas(pair: Pair, clock: ManualClock) -> None:
    whole = noise(4 * MIB)
    async with running(pair, clock) as sender:
        for turn, size in enumerate((3_000_000, 3_100_000, 3_200_000, 3_300_000), start=1):
            delivery = await pair.send(sender, whole[:size], turn)
            assert delivery.error is None
            assert pair.kept() == whole[:size]
            assert delivery.bytes == pair.uploads[-1]
            await pair.until_saves([f"{turn}.save"])
    assert pair.uploads[0] > 3_000_000
    assert all(100_000 < sent < 110_000 for sent in pair.uploads[1:])
    assert len(pair.uploads) == 4


async def test_another_target_gets_the_whole_file(pair: Pair, clock: ManualClock) -> None:
    async with running(pair, clock) as sender:
        await pair.send(sender, noise(MIB), 1)
        delivery = await pair.send(sender, noise(MIB + 9), 2, target="rig2")
        assert delivery.error is None
        assert pair.uploads[1] > MIB
        assert pair.saves() == ["1.save", "2.save"]


@pytest.mark.parametrize("missing", ["there", "other there", "here", "rotten there", "no room there"])
async def test_without_its_base_the_whole_file_goes(pair: Pair, clock: ManualClock, missing: str) -> None:
    data = noise(2 * MIB)
    async with running(pair, clock) as sender:
        await pair.send(sender, data[:MIB], 1)
        replica = pair.store.find("tiny", pair.bench.session)
        assert replica is not None
        if missing == "there":
            pair.store.forget(pair.bench.session)
        elif missing == "other there":
            pair.bench.keep(pair.store, b"other", turn=2)
        elif missing == "rotten there":
            replica.path.write_bytes(b"!" + replica.path.read_bytes()[1:])
        elif missing == "no room there":
            pair.store._max_bytes = int(2.5 * MIB)
        else:
            (pair.folder / "1.save").unlink()
        delivery = await pair.send(sender, data, 3)
        assert delivery.error is None
        assert pair.kept() == data
        assert len(pair.uploads) == (2 if missing == "here" else 3)
        pair.store._max_bytes = 64 * MIB
        assert (await pair.send(sender, data + b"more", 4)).error is None
        assert pair.uploads[-1] < 10_000, "what went whole is the next turn's base"


async def test_bases_give_way_to_saves_that_wait(pair: Pair, clock: ManualClock) -> None:
    async with running(pair, clock, max_bytes=3 * MIB) as sender:
        await pair.send(sender, noise(MIB), 1)
        assert pair.saves() == ["1.save"]
        delivery = await pair.send(sender, noise(int(2.5 * MIB)), 2)
        assert delivery.error is None
        await pair.until_saves(["2.save"])


async def test_a_file_that_takes_the_name_of_its_base_stays(pair: Pair, clock: ManualClock) -> None:
    async with running(pair, clock) as sender:
        await pair.send(sender, noise(MIB), 1)
        pair.store.forget(pair.bench.session)
        assert (await pair.send(sender, noise(MIB + 5, seed=1), 1)).error is None
        assert pair.kept() == noise(MIB + 5, seed=1)
        assert (await pair.send(sender, noise(MIB + 5, seed=1) + b"more", 2)).error is None
        assert pair.uploads[-1] < 10_000
        await pair.until_saves(["2.save"])


@pytest.mark.parametrize("delta", [False, True], ids=["whole", "delta"])
async def test_a_broken_transfer_goes_on(pair: Pair, clock: ManualClock, delta: bool) -> None:
    data, base = noise(8 * MIB), noise(MIB, seed=1)
    if delta:
        data = base + data
    async with running(pair, clock) as sender:
        if delta:
            await pair.send(sender, base, 1)
        pair.break_after, pair.uploads = [int(4.5 * MIB)], []
        delivery = await pair.send(sender, data, 2)
        assert delivery.error is None
        assert pair.kept() == data
    first, asked, rest = pair.uploads
    assert first > 3 * MIB
    assert asked < 1000, "no byte of the file goes out before the answer"
    assert rest < len(data) - 2 * MIB, "it went on where it had ended"
    assert first + rest < len(data) + MIB, "nothing that arrived was sent again"
    assert pair.store.used == len(data)


async def test_a_broken_transfer_of_which_nothing_is_kept_begins_anew(
    bench: Bench, tmp_path: Path, clock: ManualClock
) -> None:
    pair, data = Pair(bench, tmp_path, clock, keep_partials_s=0), noise(4 * MIB)
    async with running(pair, clock) as sender:
        pair.break_after = [2 * MIB]
        assert (await pair.send(sender, data, 1)).error is None
    assert pair.kept() == data
    _, asked, whole = pair.uploads
    assert asked < 1000 < len(data) < whole


@pytest.mark.parametrize("missing", [0, 1, 52], ids=["nothing", "part of the hash", "the hash"])
async def test_a_transfer_that_broke_after_its_last_byte_sends_no_other(
    pair: Pair, bench: Bench, clock: ManualClock, missing: int
) -> None:
    data = noise(4 * MIB)
    parts = [data[at : at + PART] for at in range(0, len(data), PART)]
    async with running(pair, clock) as sender:
        pair.break_after = [sum(map(len, bench.sealed(bench.header(data), parts, data))) - missing]
        assert (await pair.send(sender, data, 1)).error is None
    assert pair.kept() == data
    whole, asked = pair.uploads
    assert asked < 1000 < len(data) < whole


async def test_a_sender_may_ask_again_how_much_is_there(pair: Pair, bench: Bench) -> None:
    """As it does when the answer is lost."""
    data = noise(8 * MIB)
    pair.break_after = [int(3.5 * MIB)]
    with pytest.raises(BackendFailed):
        await pair.put("rig1", bench.stream(bench.pieces(data)))
    question = bench.sealed(bench.header(data, start=len(data)), (), data)
    offsets = set()
    for _ in range(3):
        with pytest.raises(ResumeFrom) as told:
            await pair.put("rig1", bench.stream(question))
        offsets.add(told.value.offset)
    assert offsets == {3 * MIB}
    rest = bench.sealed(bench.header(data, start=3 * MIB), bench.blocks(data[3 * MIB :]), data)
    await pair.put("rig1", bench.stream(rest))
    assert pair.kept() == data


@pytest.mark.parametrize("delta", [False, True], ids=["whole", "delta"])
async def test_after_a_lost_answer_the_target_is_asked_and_has_it(pair: Pair, clock: ManualClock, delta: bool) -> None:
    data = noise(4 * MIB)
    async with running(pair, clock) as sender:
        if delta:
            await pair.send(sender, data[:MIB], 1)
        before, pair.uploads, pair.answers_lost = sender.counts.bytes, [], 1
        delivery = await pair.send(sender, data, 2)
        assert delivery.error is None
        assert pair.kept() == data
        taken, asked = pair.uploads
        assert asked < 1000 < (3 if delta else 4) * MIB < taken
        assert delivery.bytes == sender.counts.bytes - before == taken + asked
        assert (sender.counts.sent, sender.counts.failed) == (1 + delta, 0)

        assert (await pair.send(sender, data + b"more", 3)).error is None
        assert pair.kept() == data + b"more"
        assert pair.uploads[2:] == [pytest.approx(0, abs=1000)], "what it was told of is the next turn's base"


async def test_after_a_lost_answer_of_a_file_that_is_gone_again_all_is_sent(pair: Pair, clock: ManualClock) -> None:
    data = noise(2 * MIB)
    async with running(pair, clock) as sender:
        pair.answers_lost = 1
        pair.when_lost = lambda: pair.store.forget(pair.bench.session)
        assert (await pair.send(sender, data, 1)).error is None
    assert pair.kept() == data
    taken, asked, again = pair.uploads
    assert asked < 1000 < len(data) < taken == again


async def test_a_file_that_is_only_like_the_one_asked_for_is_not_it(pair: Pair, bench: Bench) -> None:
    """The same turn and length: only the hash tells."""
    data, other = noise(MIB), noise(MIB, seed=1)
    bench.keep(pair.store, data)
    with pytest.raises(ResumeFrom) as told:
        await pair.put("rig1", bench.stream(bench.sealed(bench.header(other, start=MIB), (), other)))
    assert told.value.offset == 0
    await pair.put("rig1", bench.stream(bench.sealed(bench.header(data, start=MIB), (), data)))
    assert pair.kept() == data


async def test_a_file_that_was_saved_again_while_a_part_is_there_goes_whole(
    pair: Pair, bench: Bench, clock: ManualClock
) -> None:
    """The same turn and length: that the part is of another file shows only at the end."""
    earlier, data = noise(8 * MIB), noise(8 * MIB, seed=1)
    pair.break_after = [int(4.5 * MIB)]
    with pytest.raises(BackendFailed):
        await pair.put("rig1", bench.stream(bench.pieces(earlier)))
    pair.uploads = []
    async with running(pair, clock) as sender:
        assert (await pair.send(sender, data, 1)).error is None
        assert pair.kept() == data
        refused, rest, whole = pair.uploads
        assert refused < 3 * MIB
        assert 4 * MIB < rest < 5 * MIB
        assert len(data) < whole < len(data) + 10_000
        assert pair.store.used == len(data)
        assert bench.files(pair.folder / "replicas") == {".kv", ".json"}

        assert (await pair.send(sender, data + b"more", 2)).error is None
        assert pair.uploads[3:] == [pytest.approx(0, abs=1000)]


async def test_a_file_that_was_saved_again_while_a_part_of_its_delta_is_there_goes_whole(
    pair: Pair, bench: Bench, clock: ManualClock
) -> None:
    base = noise(MIB)
    earlier, data = base + noise(7 * MIB, seed=1), base + noise(7 * MIB, seed=2)
    async with running(pair, clock) as sender:
        await pair.send(sender, base, 1)
        pair.break_after = [int(4.5 * MIB)]
        with pytest.raises(BackendFailed):
            await pair.put("rig1", bench.stream(sealed_delta(pair, earlier, base)))
        pair.uploads = []
        assert (await pair.send(sender, data, 2)).error is None
        assert pair.kept() == data
        assert sum(sent > 8 * MIB for sent in pair.uploads) == 1


@pytest.mark.parametrize("there", ["whole", "delta"])
async def test_a_delta_whose_blocks_do_not_meet_the_part_that_is_there_gives_way_to_the_file(
    pair: Pair, bench: Bench, clock: ManualClock, there: str
) -> None:
    base = noise(MIB)
    data = base + noise(7 * MIB, seed=1)
    other = noise(MIB // 4) + noise(8 * MIB - MIB // 4, seed=2)
    async with running(pair, clock) as sender:
        await pair.send(sender, base, 1)
        pair.break_after = [int(4.5 * MIB)]
        part = bench.pieces(data, turn=2) if there == "whole" else sealed_delta(pair, other, base)
        with pytest.raises(BackendFailed):
            await pair.put("rig1", bench.stream(part))
        pair.uploads = []
        assert (await pair.send(sender, data, 2)).error is None
        assert pair.kept() == data
        if there == "whole":
            assert pair.uploads[1:] == [pytest.approx(4 * MIB, abs=10_000)], "what is there is not sent again"


@pytest.mark.parametrize("same", [True, False])
async def test_a_part_that_lacks_only_its_end_gets_that_or_the_file(
    pair: Pair, bench: Bench, clock: ManualClock, same: bool
) -> None:
    data = noise(8 * MIB)
    there = bench.pieces(data if same else noise(8 * MIB, seed=1))
    pair.break_after = [sum(map(len, there[:-1]))]
    with pytest.raises(BackendFailed):
        await pair.put("rig1", bench.stream(there))
    async with running(pair, clock) as sender:
        pair.uploads = []
        assert (await pair.send(sender, data, 1)).error is None
        assert pair.kept() == data
        assert pair.uploads[1] < 1000
        assert len(pair.uploads) == (2 if same else 3)


async def test_it_breaks_once_too_often(pair: Pair, clock: ManualClock) -> None:
    async with running(pair, clock) as sender:
        pair.break_after = [2 * MIB] * 5
        delivery = await pair.send(sender, noise(12 * MIB), 1)
    assert "broke" in str(delivery.error)
    assert pair.store.find("tiny", pair.bench.session) is None


async def test_what_nobody_goes_on_with_is_given_up(bench: Bench, tmp_path: Path, clock: ManualClock) -> None:
    pair = Pair(bench, tmp_path, clock, keep_partials_s=0.3)
    pair.break_after = [int(3.5 * MIB)]
    stream = bench.stream(bench.pieces(noise(8 * MIB)))
    with pytest.raises(BackendFailed):
        await pair.put("rig1", stream)
    assert pair.store.used == 8 * MIB
    await bench.until(lambda: pair.store.used == 0 and not list((tmp_path / "replicas").iterdir()))


async def test_a_part_serves_only_its_own_file_and_is_offered_once(pair: Pair, bench: Bench) -> None:
    data, other = noise(8 * MIB), noise(8 * MIB, seed=1)
    pair.break_after = [int(3.5 * MIB)]
    with pytest.raises(BackendFailed):
        await pair.put("rig1", bench.stream(bench.pieces(data, turn=2)))
    await pair.put("rig1", bench.stream(bench.pieces(other)))
    assert pair.kept() == other
    with pytest.raises(ResumeFrom) as told:
        await pair.put("rig1", bench.stream(bench.pieces(data, turn=2)))
    assert told.value.offset >= 2 * MIB
    await pair.put("rig1", bench.stream(bench.pieces(data, turn=2)))
    assert pair.kept() == data
    with pytest.raises(ResumeFrom) as told:
        await pair.put("rig1", bench.stream(bench.pieces(data + b"!", turn=3, start=MIB)))
    assert told.value.offset == 0


def sealed_delta(pair: Pair, new: bytes, base: bytes, *, whole: bytes | None = None, **header: Any) -> list[bytes]:
    """`whole`: what the end of the stream says the file is."""
    here, there = pair.folder / "new.kv", pair.folder / "base.kv"
    here.write_bytes(new)
    there.write_bytes(base)
    head = pair.bench.header(new, turn=2, base=pair.bench.blake3(base), **header)
    return pair.bench.sealed(head, delta_blocks(here, (), there, ()), whole or new)


@pytest.mark.parametrize("damage", ["flip", "cut", "trailing", "swap", "key", "hash"])
async def test_a_damaged_delta_leaves_what_was_there(pair: Pair, bench: Bench, damage: str) -> None:
    base = noise(MIB)
    new = base + noise(3 * MIB, seed=1)
    bench.keep(pair.store, base)
    pieces = sealed_delta(pair, new, base, whole=base if damage == "hash" else new)
    assert len(pieces) > 4
    if damage == "flip":
        pieces[2] = pieces[2][:-1] + bytes((pieces[2][-1] ^ 1,))
    elif damage == "cut":
        pieces.pop()
    elif damage == "trailing":
        pieces.append(pieces[-1])
    elif damage == "swap":
        pieces[1], pieces[2] = pieces[2], pieces[1]
    key = bytes(32) if damage == "key" else bench.key
    with pytest.raises(CacheRefused):
        await pair.take(bench.stream(pieces), key)
    assert pair.kept() == base
    assert pair.store.used == len(base)
    assert bench.files(pair.folder / "replicas") == {".kv", ".json"}


async def test_a_delta_is_not_taken_twice_nor_on_another_base(pair: Pair, bench: Bench) -> None:
    base = noise(MIB)
    new = base + noise(1000, seed=1)
    pieces = sealed_delta(pair, new, base)
    with pytest.raises(BaseMissing):
        await pair.take(bench.stream(pieces))
    bench.keep(pair.store, base)
    await pair.take(bench.stream(pieces))
    assert pair.kept() == new
    with pytest.raises(CacheRefused):
        await pair.take(bench.stream(pieces))
    assert pair.kept() == new


async def test_a_delta_that_makes_more_than_it_says_is_refused(pair: Pair, bench: Bench) -> None:
    base = noise(MIB)
    bench.keep(pair.store, base)
    pieces = sealed_delta(pair, base + base, base, length=MIB + 1)
    with pytest.raises(CacheRefused, match="longer than"):
        await pair.take(bench.stream(pieces))
    assert pair.store.used == len(base)


async def test_a_model_has_its_own_transfers_at_once(pair: Pair, clock: ManualClock) -> None:
    started: list[str] = []

    async def put(target: str, _: AsyncIterator[bytes]) -> None:
        started.append(target)
        await anyio.sleep_forever()

    limits = {"tiny": Limits(parallel=1), "other": Limits(parallel=2)}
    sender = Sender[str](put, pair.bench.key, clock, max_bytes=MIB, limits=limits.__getitem__)
    for number in range(3):
        for model in limits:
            path = pair.folder / f"{model}{number}.save"
            path.write_bytes(b"abc")
            label = pair.bench.label(model=model, session=f"{number:032x}")
            sender.offer(Save(path, label, f"{model}{number}", 3))
    task = asyncio.create_task(sender.run())
    await pair.bench.until(lambda: sorted(started) == ["other0", "other1", "tiny0"])
    task.cancel()
    await asyncio.wait([task])


async def test_pace_spreads_what_is_sent(clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(round(seconds, 6))

    monkeypatch.setattr(anyio, "sleep", sleep)
    pace = Pace(1000.0, clock)
    for _ in range(3):
        await pace.pass_on(500)
    assert waits == [0.5, 1.0]
    clock.now += 100
    await pace.pass_on(500)
    await pace.pass_on(500)
    assert waits == [0.5, 1.0, 0.5]
    await Pace(0.0, clock).pass_on(1 << 40)
    assert len(waits) == 3
