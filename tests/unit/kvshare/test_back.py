"""A cache that goes back to where it came from is a delta, and whatever is wrong with its base costs a whole one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from viiwork_core.errors import BackendFailed, BaseMissing, CacheRefused, StoreFull
from viiwork_core.kvshare import sending
from viiwork_core.kvshare.delta import delta_blocks
from viiwork_core.kvshare.incoming import Reception
from viiwork_core.kvshare.receiving import receive
from viiwork_core.kvshare.replicas import ReplicaStore
from viiwork_core.kvshare.sending import FORGOTTEN, Delivery, Save, Sender

if TYPE_CHECKING:
    from conftest import Bench, ManualClock

pytestmark = pytest.mark.anyio

MIB = 1 << 20
CHUNK = MIB // 4
"""Bytes of a stream that arrive at a time."""

TALK = random.Random(0).randbytes(4 * MIB)
"""A conversation: a turn's cache is what it begins with."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "PAUSE_S", 0.02)


class Host:
    """A node's store and its sender."""

    def __init__(self, name: str, mesh: Mesh) -> None:
        self.name, self.mesh = name, mesh
        self.folder = mesh.folder / name
        self.folder.mkdir(parents=True)
        self.clock = mesh.clock
        self.open(64 * MIB)
        self.gate = asyncio.Event()
        self.gate.set()
        self.answers_lost = 0
        """Of the next streams that are taken."""

        self.came: list[tuple[Any, bool]] = []
        """Bytes of each stream that arrived, and whether it was a delta."""

        self.break_after: list[int] = []
        """For each of the next streams: how many of its bytes arrive, to the next chunk."""

        self.at_byte: dict[int, Callable[[], object]] = {}
        """What happens, once, when a stream has so many bytes behind it."""

        self.ended: list[Delivery[str]] = []
        self.sender = Sender[str](
            self.put, mesh.bench.key, mesh.clock, max_bytes=64 * MIB, ended=self.ended.append, store=self.store
        )

    def open(self, room: int) -> None:
        self.store = ReplicaStore(self.folder / "replicas", room, self.clock, keep_partials_s=60.0).open()

    def restart(self) -> None:
        """All that the node keeps in memory of what came is gone."""
        self.open(64 * MIB)
        self.sender._store = self.store

    async def put(self, to: str, stream: AsyncIterator[bytes]) -> None:
        await self.mesh.hosts[to].take(self.name, stream)

    async def take(self, origin: str, stream: AsyncIterator[bytes]) -> None:
        number = len(self.came)
        self.came.append((0, False))
        most = self.break_after.pop(0) if self.break_after else 1 << 30

        async def arriving() -> AsyncIterator[bytes]:
            behind = 0
            async for piece in stream:
                for at in range(0, len(piece), CHUNK):
                    for due in [due for due in self.at_byte if due <= behind]:
                        self.at_byte.pop(due)()
                    if behind >= most:
                        raise ConnectionResetError("the sender left")
                    chunk = piece[at : at + CHUNK]
                    behind += len(chunk)
                    self.came[number] = (behind, b'"base":"' in chunk or self.came[number][1])
                    yield chunk
                    await self.gate.wait()

        try:
            reception = Reception(self.store, lambda _: None, origin, self.sender.sent)
            await receive(arriving(), reception, self.mesh.bench.key)
        except ConnectionResetError as error:
            raise BackendFailed("the connection broke") from error
        if self.answers_lost:
            self.answers_lost -= 1
            raise BackendFailed("the connection broke")

    async def send(self, to: str, size: int, turn: int, session: str = "") -> Delivery[str]:
        count = len(self.ended)
        self.offer(to, size, turn, session)
        await self.mesh.bench.until(lambda: len(self.ended) > count)
        return self.ended[-1]

    def offer(self, to: str, size: int, turn: int, session: str = "") -> Path:
        label = self.mesh.bench.label(turn=turn, session=session or self.mesh.bench.session)
        path = self.folder / f"{label.session}.{turn}.save"
        path.write_bytes(TALK[:size])
        self.sender.offer(Save(path, label, to, size))
        return path

    def kept(self) -> bytes:
        replica = self.store.find("tiny", self.mesh.bench.session)
        assert replica is not None
        data = replica.path.read_bytes()
        assert (replica.header.length, replica.header.blake3) == (len(data), self.mesh.bench.blake3(data))
        return data

    def files(self) -> set[str]:
        return {path.name for path in self.folder.glob("*.save")}


class Mesh:
    """Hosts that send each other caches."""

    def __init__(self, bench: Bench, folder: Path, clock: ManualClock) -> None:
        self.bench, self.folder, self.clock = bench, folder, clock
        self.hosts = {}
        self.hosts = {name: Host(name, self) for name in ("alpha", "beta", "gamma")}


@asynccontextmanager
async def running(bench: Bench, folder: Path, clock: ManualClock) -> AsyncIterator[Mesh]:
    mesh = Mesh(bench, folder, clock)
    tasks = [asyncio.create_task(host.sender.run()) for host in mesh.hosts.values()]
    try:
        yield mesh
    finally:
        for host in mesh.hosts.values():
            host.gate.set()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert [host.files() for host in mesh.hosts.values()] == [set()] * 3, "a sender left files behind"


@pytest.fixture
async def mesh(bench: Bench, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Mesh]:
    async with running(bench, tmp_path, clock) as made:
        yield made


async def test_there_and_back_and_there_again(mesh: Mesh) -> None:
    """Only the first is whole, and each end has what the other one has said."""
    alpha, beta = mesh.hosts["alpha"], mesh.hosts["beta"]
    ways = [(alpha, beta), (beta, alpha)] * 3
    for turn, (one, other) in enumerate(ways, start=1):
        size = 3_000_000 + 100_000 * turn
        assert (await one.send(other.name, size, turn)).error is None
        assert other.kept() == TALK[:size]
    assert beta.came[0] == (pytest.approx(3_100_000, abs=1000), False)
    deltas = beta.came[1:] + alpha.came
    assert len(deltas) == 5
    assert all(delta and 100_000 < size < 110_000 for size, delta in deltas)


async def test_another_host_has_no_base(mesh: Mesh) -> None:
    await mesh.hosts["alpha"].send("beta", MIB, 1)
    assert (await mesh.hosts["beta"].send("gamma", 2 * MIB, 2)).error is None
    assert mesh.hosts["gamma"].came == [(pytest.approx(2 * MIB, abs=1000), False)]


@pytest.mark.parametrize("missing", ["here", "there", "file there", "rotten there"])
async def test_whatever_is_wrong_with_the_base_costs_a_whole_one(mesh: Mesh, missing: str) -> None:
    alpha, beta = mesh.hosts["alpha"], mesh.hosts["beta"]
    sent = alpha.offer("beta", 2 * MIB, 1)
    await mesh.bench.until(lambda: bool(alpha.ended))
    replica = beta.store.find("tiny", mesh.bench.session)
    assert replica is not None
    if missing == "here":
        beta.store.forget(mesh.bench.session)
    elif missing == "there":
        alpha.sender.forget(mesh.bench.session)
    elif missing == "file there":
        sent.unlink()
    else:
        sent.write_bytes(b"!" + sent.read_bytes()[1:])
    assert (await beta.send("alpha", 3 * MIB, 2)).error is None
    assert alpha.kept() == TALK[: 3 * MIB]
    assert alpha.came[-1] == (pytest.approx(3 * MIB, abs=1000), False)
    assert [delta for _, delta in alpha.came[:-1]] == ([] if missing == "here" else [True])
    assert not [path for path in (alpha.folder / "replicas").iterdir() if path.suffix == ".tmp"]

    # From here on the two agree again.
    assert (await alpha.send("beta", 3 * MIB + 9, 3)).error is None
    assert beta.came[-1] == (pytest.approx(0, abs=2000), True)
    assert beta.kept() == TALK[: 3 * MIB + 9]


@pytest.mark.parametrize("at", [0, MIB, 2 * MIB - 1])
async def test_damage_at_the_sender_only_costs_bytes(mesh: Mesh, at: int) -> None:
    """Where its base is not what the new file says, new bytes are sent: they are right, whatever the base was."""
    alpha, beta = mesh.hosts["alpha"], mesh.hosts["beta"]
    await alpha.send("beta", 2 * MIB, 1)
    replica = beta.store.find("tiny", mesh.bench.session)
    assert replica is not None
    with replica.path.open("r+b") as file:
        file.seek(at)
        file.write(bytes((TALK[at] ^ 1,)))
    assert (await beta.send("alpha", 3 * MIB, 2)).error is None
    assert alpha.kept() == TALK[: 3 * MIB]
    assert len(alpha.came) == 1


@pytest.mark.parametrize("acknowledged", [False, True])
async def test_what_an_earlier_run_received_is_a_base(mesh: Mesh, acknowledged: bool) -> None:
    alpha, beta = mesh.hosts["alpha"], mesh.hosts["beta"]
    if acknowledged:
        await beta.send("alpha", MIB, 1)
    await alpha.send("beta", 2 * MIB, 2)
    alpha.came = []
    beta.restart()
    assert (await beta.send("alpha", 3 * MIB, 3)).error is None
    assert alpha.kept() == TALK[: 3 * MIB]
    assert alpha.came == [(pytest.approx(MIB, abs=2000), True)]


async def test_what_an_earlier_run_received_is_no_base_for_another_host(mesh: Mesh) -> None:
    alpha, beta, gamma = mesh.hosts.values()
    await alpha.send("beta", 2 * MIB, 1)
    beta.restart()
    assert (await beta.send("gamma", 3 * MIB, 2)).error is None
    assert gamma.came == [(pytest.approx(3 * MIB, abs=1000), False)]


async def test_what_came_from_nobody_known_is_no_base_but_what_was_acknowledged_is(mesh: Mesh) -> None:
    alpha, beta = mesh.hosts["alpha"], mesh.hosts["beta"]
    await beta.send("alpha", MIB, 1)
    mesh.bench.keep(beta.store, TALK[: 2 * MIB], turn=2)
    beta.restart()
    assert (await beta.send("alpha", 3 * MIB, 3)).error is None
    assert alpha.kept() == TALK[: 3 * MIB]
    assert alpha.came[1:] == [(pytest.approx(2 * MIB, abs=2000), True)]


async def test_a_way_back_whose_answer_was_lost_is_asked_for_and_is_there(mesh: Mesh) -> None:
    """What the next turns stand on is the same at both ends, whichever way they go."""
    alpha, beta = mesh.hosts["alpha"], mesh.hosts["beta"]
    await alpha.send("beta", MIB, 1)
    alpha.answers_lost = 1
    delivery = await beta.send("alpha", 3 * MIB, 2)
    assert delivery.error is None
    assert alpha.kept() == TALK[: 3 * MIB]
    assert alpha.came == [(pytest.approx(2 * MIB, abs=2000), True), (pytest.approx(0, abs=1000), False)]
    assert delivery.bytes == beta.sender.counts.bytes == sum(size for size, _ in alpha.came)
    assert (beta.sender.counts.sent, beta.sender.counts.failed) == (1, 0)
    for one, other, turn in ((beta, alpha, 3), (alpha, beta, 4)):
        assert (await one.send(other.name, 3 * MIB + turn, turn)).error is None
        assert other.came[-1] == (pytest.approx(0, abs=2000), True)
        assert other.kept() == TALK[: 3 * MIB + turn]


async def test_where_the_newest_is_gone_the_one_before_serves(mesh: Mesh) -> None:
    alpha, beta = mesh.hosts["alpha"], mesh.hosts["beta"]
    await beta.send("alpha", MIB, 1)
    await alpha.send("beta", 2 * MIB, 2)
    alpha.sender.forget(mesh.bench.session)
    assert (await beta.send("alpha", 3 * MIB, 3)).error is None
    assert alpha.kept() == TALK[: 3 * MIB]
    assert alpha.came[-2:] == [(pytest.approx(MIB, abs=100_000), True), (pytest.approx(2 * MIB, abs=2000), True)]


async def test_a_way_back_that_broke_off_goes_on(mesh: Mesh) -> None:
    alpha, beta = mesh.hosts["alpha"], mesh.hosts["beta"]
    await alpha.send("beta", MIB // 2, 1)
    alpha.break_after = [int(2.5 * MIB)]
    assert (await beta.send("alpha", 4 * MIB, 2)).error is None
    assert alpha.kept() == TALK
    assert [delta for _, delta in alpha.came] == [True, False, True], "the one between asks"
    assert alpha.came[1][0] < 1000
    assert alpha.came[-1][0] < 3 * MIB, "it went on where it had ended"


async def test_a_way_back_that_lost_its_base_on_the_way_goes_on_whole(mesh: Mesh) -> None:
    alpha, beta = mesh.hosts["alpha"], mesh.hosts["beta"]
    await beta.send("alpha", MIB // 4, 1)
    await alpha.send("beta", MIB // 2, 2)
    alpha.break_after, alpha.came = [int(2.5 * MIB)], []
    alpha.at_byte = {int(2.5 * MIB): lambda: alpha.sender.forget(mesh.bench.session)}
    assert (await beta.send("alpha", 4 * MIB, 3)).error is None
    assert alpha.kept() == TALK
    assert [delta for _, delta in alpha.came] == [True, False, True, False], "the second asks"
    assert alpha.came[-1][0] < 3 * MIB, "it went on where it had ended"


async def test_what_is_in_use_stays(mesh: Mesh) -> None:
    """The base of a transfer under way is neither evicted, nor deleted when a newer turn takes its place."""
    alpha, beta, bench = mesh.hosts["alpha"], mesh.hosts["beta"], mesh.bench
    await alpha.send("beta", 2 * MIB, 1)
    base = beta.store.find("tiny", bench.session)
    assert base is not None
    alpha.gate.clear()
    beta.offer("alpha", 4 * MIB, 3)
    await bench.until(lambda: bool(alpha.came))
    beta.store._max_bytes = 3 * MIB
    with pytest.raises(StoreFull):
        bench.keep(beta.store, TALK[: 2 * MIB], session="0b" * 16)
    bench.keep(beta.store, TALK[: MIB // 2], turn=2)
    assert base.path.exists()
    alpha.gate.set()
    await bench.until(lambda: len(beta.ended) == 1)
    assert beta.ended[0].error is None
    assert alpha.kept() == TALK
    assert alpha.came == [(pytest.approx(2 * MIB, abs=2000), True)]
    await bench.until(lambda: not base.path.exists())
    assert beta.store.used == MIB // 2


async def test_what_was_sent_may_go_while_a_delta_is_carried_out_on_it(mesh: Mesh) -> None:
    alpha, beta, bench = mesh.hosts["alpha"], mesh.hosts["beta"], mesh.bench
    sent = alpha.offer("beta", 2 * MIB, 1)
    await bench.until(lambda: bool(alpha.ended))
    alpha.at_byte = {int(1.5 * MIB): lambda: alpha.sender.forget(bench.session)}
    assert (await beta.send("alpha", 4 * MIB, 2)).error is None
    assert (alpha.kept(), len(alpha.came), sent.exists()) == (TALK, 1, False)


async def sent_at_once(one: Host, other: Host, sizes: tuple[int, int], turn: int) -> None:
    """Both transfers have begun before either goes on."""
    arrived, done = (len(one.came), len(other.came)), len(one.ended) + len(other.ended)
    one.gate.clear()
    other.gate.clear()
    one.offer(other.name, sizes[0], turn)
    other.offer(one.name, sizes[1], turn)
    await one.mesh.bench.until(lambda: len(one.came) > arrived[0] and len(other.came) > arrived[1])
    one.gate.set()
    other.gate.set()
    await one.mesh.bench.until(lambda: len(one.ended) + len(other.ended) == done + 2)


async def test_both_send_the_session_to_each_other_at_once(mesh: Mesh) -> None:
    alpha, beta = mesh.hosts["alpha"], mesh.hosts["beta"]
    await alpha.send("beta", MIB, 1)
    await beta.send("alpha", MIB + 1000, 2)
    for turn in (3, 5, 7):
        size = MIB + 100_000 * turn
        await sent_at_once(alpha, beta, (size, size + 7), turn)
        assert [one.ended[-1].error for one in (alpha, beta)] == [None, None]
        assert alpha.kept() == TALK[: size + 7]
        assert beta.kept() == TALK[:size]
    assert all(delta for _, delta in alpha.came + beta.came[1:])


# Who lies


OTHER = random.Random(1).randbytes(3 * MIB)


def lie(host: Host, session: str, named: str, content: bytes) -> list[bytes]:
    """The stream of a delta that names one base and stands on another."""
    bench, new, base = host.mesh.bench, host.folder / "new", host.folder / "base"
    new.write_bytes(OTHER)
    base.write_bytes(content)
    head = bench.header(OTHER, turn=2, session=session, base=named)
    return bench.sealed(head, delta_blocks(new, (), base, ()), OTHER)


@pytest.mark.parametrize(
    ("content", "said"), [(OTHER[: 2 * MIB], "did not make the file"), (OTHER, "a part of its base that is not there")]
)
async def test_a_delta_that_does_not_stand_on_what_it_names_is_refused(mesh: Mesh, content: bytes, said: str) -> None:
    alpha, bench = mesh.hosts["alpha"], mesh.bench
    sent = alpha.offer("beta", 2 * MIB, 1)
    await bench.until(lambda: bool(alpha.ended))
    pieces = lie(alpha, bench.session, bench.blake3(TALK[: 2 * MIB]), content)
    with pytest.raises(CacheRefused, match=said):
        await alpha.take("beta", bench.stream(pieces))
    assert alpha.store.find("tiny", bench.session) is None
    assert list((alpha.folder / "replicas").iterdir()) == []
    assert sent.read_bytes() == TALK[: 2 * MIB]


async def test_no_delta_stands_on_another_session(mesh: Mesh) -> None:
    alpha, bench = mesh.hosts["alpha"], mesh.bench
    await alpha.send("beta", 2 * MIB, 1)
    base = TALK[: 2 * MIB]
    pieces = lie(alpha, "0b" * 16, bench.blake3(base), base)
    with pytest.raises(BaseMissing):
        await alpha.take("beta", bench.stream(pieces))
    assert alpha.store.find("tiny", "0b" * 16) is None


# What is forgotten


async def test_a_forgotten_session_leaves_no_base_and_its_transfer_ends(mesh: Mesh) -> None:
    alpha, beta, bench, other = mesh.hosts["alpha"], mesh.hosts["beta"], mesh.bench, "0b" * 16
    await alpha.send("beta", MIB, 1)
    await alpha.send("beta", MIB, 1, session=other)
    beta.gate.clear()
    alpha.offer("beta", 3 * MIB, 2)
    await bench.until(lambda: len(beta.came) == 3)
    alpha.offer("beta", 3 * MIB + 1, 3)
    alpha.sender.forget(bench.session)
    await bench.until(lambda: alpha.files() == {f"{other}.1.save"})
    beta.gate.set()
    assert [one.error for one in alpha.ended] == [None, None, FORGOTTEN, FORGOTTEN]
    assert (alpha.sender.counts.failed, alpha.sender.counts.dropped) == (1, 1)
    kept = beta.store.find("tiny", bench.session)
    assert kept is not None
    assert kept.header.turn == 1
    assert alpha.sender.sent(bench.header(b"", base=kept.header.blake3)) is None

    # It may go on.
    assert (await alpha.send("beta", 3 * MIB, 4)).error is None
    assert not beta.came[-1][1]


async def test_it_is_forgotten_before_its_transfer_has_begun(bench: Bench, tmp_path: Path, clock: ManualClock) -> None:
    async with running(bench, tmp_path, clock) as mesh:
        alpha = mesh.hosts["alpha"]
        alpha.offer("beta", MIB, 1)
        alpha.sender.forget(bench.session)
        await bench.until(lambda: not alpha.files())
        assert [one.error for one in alpha.ended] == [FORGOTTEN]
        assert mesh.hosts["beta"].came == []


async def test_parts_of_a_forgotten_session_go_at_once(mesh: Mesh) -> None:
    beta, bench = mesh.hosts["beta"], mesh.bench
    beta.break_after = [int(2.5 * MIB)]
    with pytest.raises(BackendFailed):
        await beta.take("alpha", bench.stream(bench.pieces(TALK)))
    assert beta.store.used == len(TALK)
    beta.store.partials.forget("0b" * 16)
    assert beta.store.used == len(TALK)
    beta.store.partials.forget(bench.session)
    await bench.until(lambda: beta.store.used == 0 and not list((beta.folder / "replicas").iterdir()))
