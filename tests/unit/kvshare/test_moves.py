"""A cache that moves never costs more than a cold turn: late, hanging, useless, overtaken, forgotten, many at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from blake3 import blake3

from viiwork_core import (
    Address,
    CacheFile,
    CacheTransfer,
    Context,
    EngineUnreachable,
    NoOptions,
    Saved,
    SessionRef,
    Spec,
)
from viiwork_core.clock import SystemClock
from viiwork_core.contracts.policy import Score
from viiwork_core.engines.slots import SlotBook
from viiwork_core.engines.states import BackendState, BackendView
from viiwork_core.errors import CacheRefused, FingerprintMismatch, StoreFull
from viiwork_core.kvshare.caches import Caches, SharedModel
from viiwork_core.kvshare.intake import MOST_OF_ONE
from viiwork_core.kvshare.replicas import ReplicaStore
from viiwork_core.kvshare.sealing import TransferHeader, seal
from viiwork_core.kvshare.sending import Save, Sender
from viiwork_core.kvshare.turns import Turn, Usage
from viiwork_core.mesh.member import Member

T = TypeVar("T")

CLOCK, KEY = SystemClock(), b"k" * 32
SESSION = "5e" * 16
PEER = Member(node="b", node_id="b1", host="127.0.0.1", api_port=1)
SLOW, FAST = Score(1.0, 60_000.0), Score(1.0, 0.001)
"""A minute for 1,000 tokens, and a microsecond."""


class Engine(CacheTransfer):
    """Its cache file is a number of tokens, in words."""

    engine = "words"

    def __init__(self) -> None:
        super().__init__(NoOptions(), Context("a", Path(), _unused, _unused))
        self.live = 600
        self.dead = False
        self.may_save = asyncio.Event()
        self.may_save.set()
        self.may_restore = asyncio.Event()
        self.may_restore.set()
        self.restored: list[str] = []

    async def fingerprint(self, spec: Spec, address: Address) -> Mapping[str, str]:
        return {}

    async def save(self, spec: Spec, address: Address, session: SessionRef, name: str) -> Saved:
        assert spec.cache_dir is not None
        (spec.cache_dir / name).write_text(str(self.live))
        await self.may_save.wait()
        if self.dead:
            raise EngineUnreachable("the connection broke")
        return Saved(self.live, 3)

    async def restore(self, spec: Spec, address: Address, session: SessionRef, name: str) -> int:
        assert spec.cache_dir is not None
        tokens = int((spec.cache_dir / name).read_text())
        await self.may_restore.wait()
        if self.dead:
            raise EngineUnreachable("the connection broke")
        self.restored.append(session.key)
        return tokens

    async def holds(self, spec: Spec, address: Address, session: SessionRef) -> int | None:
        return None

    def read(self, path: Path) -> CacheFile:
        return CacheFile(int(path.read_text()), None, ())


async def _unused(what: object) -> Any:
    raise AssertionError(f"nothing asks for {what}")


class Here:
    async def call(self, make: Callable[[], Awaitable[T]]) -> T:
        return await make()


class Offers(Sender[Member]):
    def __init__(self) -> None:
        super().__init__(_unsent, KEY, CLOCK, max_bytes=1)
        self.taken: list[Save[Member]] = []
        self.forgot: list[str] = []

    def offer(self, save: Save[Member]) -> None:
        self.taken.append(save)

    def forget(self, session: str) -> None:
        self.forgot.append(session)


async def _unsent(target: Member, stream: object) -> None:
    raise AssertionError("nothing is sent here")


@dataclass
class Node:
    """One node's caches. Made inside a running loop."""

    folder: Path
    room: int = 1 << 20
    slots: int = 4
    score: Score | None = None
    buried: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.engine, self.sender, self.book = Engine(), Offers(), SlotBook(CLOCK)
        self.see(1)
        self.store = ReplicaStore(self.folder / "replicas", self.room, CLOCK).open()
        self.cache_dir = self.folder / "engine"
        self.cache_dir.mkdir(parents=True)
        self.caches = Caches(
            self.models(),
            slotted={"m": True},
            book=self.book,
            store=self.store,
            sender=self.sender,
            control=Here(),
            target=lambda *_: PEER,
            clock=CLOCK,
            score=lambda _: self.score,
            buried=self.buried.get,
        )

    def models(self) -> dict[str, SharedModel]:
        spec = Spec("m", 0, 1, None, 4096, self.slots, cache_dir=self.cache_dir)
        return {"m": SharedModel("g", 100, self.engine, {"m/0": spec})}

    def see(self, incarnation: int) -> None:
        address = Address("127.0.0.1", 1)
        self.book.see(
            BackendView(
                "m/0", "m", "words", BackendState.HEALTHY, incarnation, self.slots, address=address, fingerprint="f"
            )
        )

    def turn(self, session: str = SESSION) -> Turn:
        reservation = self.book.reserve("m/0")
        assert reservation is not None
        return Turn(session, reservation, "/v1/chat/completions", b"{}")

    def again(self, turn: Turn) -> Turn:
        """The session's next turn, in the same slot."""
        reservation = self.book.reserve("m/0", prefer=turn.reservation.slot)
        assert reservation is not None
        return Turn(turn.session, reservation, turn.path, turn.body)

    def header(self, tokens: int = 500, **changes: Any) -> TransferHeader:
        fields = {"model": "m", "group": "g", "fingerprint": "f", "session": SESSION, "turn": 1, **changes}
        return TransferHeader(**{"tokens": tokens, "length": len(str(tokens)), **fields})

    async def take(self, tokens: int = 500, **changes: Any) -> None:
        await self.caches.take(stream(self.header(tokens, **changes), str(tokens).encode()), KEY)

    async def ended(self, turn: Turn, usage: Usage) -> None:
        await self.caches.after(turn, usage)
        self.book.release(turn.reservation)

    async def imported(self, cached: int) -> None:
        """A turn after an import, which reused so many of its 510 tokens."""
        turn = self.turn()
        await self.caches.before(turn)
        await self.ended(turn, Usage(510, cached, 3))

    @property
    def left(self) -> list[str]:
        return [file.name for file in self.cache_dir.iterdir()]


def sealed(header: TransferHeader, content: bytes) -> list[bytes]:
    return [bytes(piece) for piece in seal(KEY, header, [content], lambda: blake3(content).digest())]


async def stream(header: TransferHeader, content: bytes) -> AsyncIterator[bytes]:
    for piece in sealed(header, content):
        yield piece


def run(scene: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scene()

    asyncio.run(bounded())


async def until(holds: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not holds():  # noqa: ASYNC110  # the book has no events
            await asyncio.sleep(0.005)


def test_a_restore_that_hangs_ends_when_reading_would(tmp_path: Path) -> None:
    async def scene() -> None:
        node = Node(tmp_path, score=Score(1.0, 200.0))
        await node.take()
        node.engine.may_restore.clear()
        turn = node.turn()
        await node.caches.before(turn)
        assert node.caches.tally.of("m").import_failed == 1
        assert node.left == []
        assert node.caches.held(node.book.view("m/0"), SESSION) is None
        assert node.caches.tally.import_s("m", 3) is not None, "it is known to take that long"
        await node.ended(turn, Usage(510, 0, 3))

    run(scene)


def test_what_is_read_faster_than_imported_is_read(tmp_path: Path) -> None:
    async def scene() -> None:
        node = Node(tmp_path, score=FAST)
        await node.take()
        await node.caches.before(node.turn())
        assert node.engine.restored == []
        node.score = SLOW
        await node.caches.before(node.turn())
        assert node.engine.restored == [SESSION]

    run(scene)


def test_a_save_that_spares_less_than_it_stalls_is_left(tmp_path: Path) -> None:
    async def scene() -> None:
        node = Node(tmp_path, score=Score(1.0, 1e-7))
        await node.ended(node.turn(), Usage(600, 0, 1))
        assert len(node.sender.taken) == 1, "the first tells how large a token is"
        await node.ended(node.turn(), Usage(600, 0, 1))
        assert len(node.sender.taken) == 1
        node.score = SLOW
        await node.ended(node.turn(), Usage(600, 0, 1))
        assert len(node.sender.taken) == 2

    run(scene)


def test_two_useless_restores_turn_the_model_off(tmp_path: Path) -> None:
    """As with a sliding window: the engine says yes, and reads the whole prompt."""

    async def scene() -> None:
        node = Node(tmp_path)
        for turn in (5, 10):
            await node.take(turn=turn)
            assert not node.caches.unmovable("m", "f")
            await node.imported(cached=0)
        assert node.caches.unmovable("m", "f")
        assert node.caches.tally.of("m").useless == 2
        saved = len(node.sender.taken)
        await node.ended(node.turn(), Usage(600, 0, 1))
        assert len(node.sender.taken) == saved
        with pytest.raises(CacheRefused, match="of no use"):
            await node.take(turn=99)
        restored = len(node.engine.restored)
        await node.caches.before(node.turn())
        assert len(node.engine.restored) == restored
        node.engine = Engine()
        node.caches.follow(node.models(), slotted={"m": True})
        assert not node.caches.unmovable("m", "f"), "another configuration is tried again"

    run(scene)


def test_a_save_that_the_next_turn_overtakes_is_dropped(tmp_path: Path) -> None:
    async def scene() -> None:
        node = Node(tmp_path)
        node.engine.may_save.clear()
        turn = node.turn()
        saving = asyncio.create_task(node.caches.after(turn, Usage(600, 0, 1)))
        await until(lambda: node.book.saving(turn.reservation))
        node.caches.overtaken(turn)
        node.book.release(turn.reservation)
        await node.ended(turn := node.again(turn), Usage(600, 590, 1))
        assert node.book.idle("m/0"), "a second save does not wait for the first"
        node.engine.may_save.set()
        await saving
        assert node.sender.taken == []
        assert node.left == []
        assert node.caches.held(node.book.view("m/0"), SESSION) == (turn.reservation.slot, 601)
        await node.ended(node.turn(), Usage(600, 590, 1))
        assert len(node.sender.taken) == 1, "and the next turn is saved again"

    run(scene)


@pytest.mark.parametrize("during", ["save", "restore"])
def test_an_engine_killed_meanwhile_costs_a_cold_turn(tmp_path: Path, during: str) -> None:
    async def scene() -> None:
        node = Node(tmp_path)
        node.engine.dead = True
        turn = node.turn()
        if during == "restore":
            await node.take()
            await node.caches.before(turn)
            assert node.caches.tally.of("m").import_failed == 1
            node.engine.live = 512
        await node.ended(turn, Usage(510, 0, 3))
        assert node.sender.taken == []
        assert node.left == []
        node.see(2)
        assert node.caches.held(node.book.view("m/0"), SESSION) is None, "a new launch holds nothing"
        node.engine.dead = False
        await node.ended(node.turn(), Usage(510, 0, 3))
        assert len(node.sender.taken) == 1 if during == "restore" else True

    run(scene)


def test_what_the_engine_dropped_after_an_import_is_counted_and_imported_again(tmp_path: Path) -> None:
    async def scene() -> None:
        node = Node(tmp_path)
        await node.take(turn=3)
        await node.imported(cached=0)
        await node.imported(cached=500)
        assert node.caches.tally.of("m").useless == 1
        assert not node.caches.unmovable("m", "f")

    run(scene)


def test_a_session_that_returns_while_its_replica_is_under_way(tmp_path: Path) -> None:
    """Two nodes, each with a replica for the other on its way: the newer turn stays, and no number is given twice."""

    async def scene() -> None:
        one, two = Node(tmp_path / "a"), Node(tmp_path / "b")
        await one.ended(one.turn(), Usage(600, 0, 1))
        sent = one.sender.taken[0].label.turn
        two.caches.saw(SESSION, one.caches.turn_of(SESSION))
        await two.ended(two.turn(), Usage(610, 0, 1))
        with_turn = two.caches.turn_of(SESSION)
        assert (sent, with_turn) == (1, 2)
        one.caches.saw(SESSION, with_turn)
        await one.ended(one.turn(), Usage(620, 600, 1))
        await one.take(turn=with_turn)
        turn = one.turn()
        await one.caches.before(turn)
        assert one.caches.turn_of(SESSION) == 3
        await one.ended(turn, Usage(630, 620, 1))
        assert one.caches.turn_of(SESSION) == 4

    run(scene)


def test_of_two_nodes_that_send_the_same_session_the_newer_turn_stays(tmp_path: Path) -> None:
    async def scene() -> None:
        node = Node(tmp_path)
        results = await asyncio.gather(
            *(node.take(tokens, turn=turn) for turn, tokens in ((2, 500), (5, 700), (3, 600), (5, 700))),
            return_exceptions=True,
        )
        assert all(result is None or isinstance(result, CacheRefused) for result in results)
        found = node.store.find("m", SESSION)
        assert found is not None
        assert (found.header.turn, found.header.tokens) == (5, 700)
        with pytest.raises(CacheRefused, match="not newer"):
            await node.take(500, turn=4)
        assert [one.header.turn for one in node.caches.replicas()] == [5]

    run(scene)


def test_a_replayed_upload_and_one_that_lies_about_its_fingerprint_change_nothing(tmp_path: Path) -> None:
    async def scene() -> None:
        node = Node(tmp_path)
        frames = sealed(node.header(turn=2), b"500")

        async def recorded() -> AsyncIterator[bytes]:
            for frame in frames:
                yield frame

        await node.caches.take(recorded(), KEY)
        with pytest.raises(CacheRefused, match="not newer"):
            await node.caches.take(recorded(), KEY)
        with pytest.raises(FingerprintMismatch):
            await node.take(turn=9, fingerprint="other")
        # What calls itself ours and is not is found out by the engine: the file is none of its own.
        forged = b"not a cache"
        await node.caches.take(stream(node.header(turn=9, length=len(forged)), forged), KEY)
        turn = node.turn()
        await node.caches.before(turn)
        assert node.engine.restored == []
        await node.ended(turn, Usage(510, 0, 3))
        assert node.caches.tally.of("m").refused == 2

    run(scene)


def test_a_store_for_ten_takes_two_hundred_sessions_at_once(tmp_path: Path) -> None:
    async def scene() -> None:
        node = Node(tmp_path, room=30)
        results = await asyncio.gather(
            *(node.take(session=f"{number:032x}") for number in range(200)), return_exceptions=True
        )
        assert all(result is None or isinstance(result, StoreFull) for result in results), results
        assert node.store.used <= 30
        kept = node.caches.replicas()
        assert 1 <= len(kept) <= 10
        assert len(list((tmp_path / "replicas").iterdir())) == 2 * len(kept)
        for one in kept:
            turn = node.turn(one.header.session)
            await node.caches.before(turn)
            node.book.release(turn.reservation)
        assert sorted(node.engine.restored) == sorted(one.header.session for one in kept)

    run(scene)


def test_a_forgotten_session_leaves_nothing_and_may_go_on(tmp_path: Path) -> None:
    async def scene() -> None:
        node = Node(tmp_path)
        await node.take(turn=4)
        await node.ended(node.turn(), Usage(600, 0, 1))
        assert [name for name in node.left if name.startswith(SESSION)]
        node.buried[SESSION] = node.caches.turn_of(SESSION)
        assert await node.caches.forget(SESSION) == 1
        assert node.left == [], "what waits to be sent, or what a delta stands on, is gone too"
        assert node.sender.forgot == [SESSION]
        assert node.store.find("m", SESSION) is None
        assert node.caches.held(node.book.view("m/0"), SESSION) is None
        for turn in (4, 5):
            with pytest.raises(CacheRefused, match="forgotten"):
                await node.take(turn=turn)
        await node.ended(node.turn(), Usage(600, 0, 1))
        assert node.sender.taken[-1].label.turn == 6
        await node.take(turn=7)
        assert node.store.find("m", SESSION) is not None

    run(scene)


def test_a_session_forgotten_while_it_is_saved_is_not_sent(tmp_path: Path) -> None:
    async def scene() -> None:
        node = Node(tmp_path)
        node.engine.may_save.clear()
        turn = node.turn()
        saving = asyncio.create_task(node.caches.after(turn, Usage(600, 0, 1)))
        await until(lambda: node.book.saving(turn.reservation))
        node.buried[SESSION] = node.caches.turn_of(SESSION)
        node.engine.may_save.set()
        await saving
        assert (node.sender.taken, node.left) == ([], [])

    run(scene)


def test_turns_are_counted_by_switch_and_reuse(tmp_path: Path) -> None:
    async def scene() -> None:
        node = Node(tmp_path)
        await node.ended(node.turn(), Usage(600, 0, 1))
        await node.ended(node.turn(), Usage(600, 595, 1))
        await node.take(turn=7)
        await node.imported(cached=200)
        assert node.caches.tally.turns == {("m", "none", "warm"): 1, ("m", "host", "partly"): 1}

    run(scene)


def test_a_sender_that_only_asks_whether_its_replica_is_here_is_not_counted_again(tmp_path: Path) -> None:
    async def scene() -> None:
        node = Node(tmp_path)
        await node.take(turn=3)
        header = node.header(turn=3, start=3)
        question = seal(KEY, header, (), lambda: blake3(b"500").digest())
        replica = await node.caches.take(_pieces([bytes(piece) for piece in question]), KEY)
        assert replica.header.turn == 3
        counts = node.caches.tally.of("m")
        assert (counts.received, counts.received_bytes, counts.refused) == (1, 3, 0)

    run(scene)


def test_one_member_sends_so_many_replicas_at_a_time_and_no_more(tmp_path: Path) -> None:
    async def scene() -> None:
        node = Node(tmp_path)
        waits = asyncio.Event()

        async def slow() -> AsyncIterator[bytes]:
            await waits.wait()
            yield b""

        async def send(origin: str) -> None:
            with pytest.raises(CacheRefused, match="cut short"):
                await node.caches.take(slow(), KEY, origin=origin)

        running = [asyncio.create_task(send("one")) for _ in range(MOST_OF_ONE)]
        await asyncio.sleep(0)
        with pytest.raises(CacheRefused, match="of one arrive here already"):
            await node.caches.take(slow(), KEY, origin="one")
        running.append(asyncio.create_task(send("two")))
        waits.set()
        await asyncio.gather(*running)
        await node.take(turn=3)

    run(scene)


async def _pieces(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece
