"""What happens to a session's cache around a turn, with a small engine made of files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from blake3 import blake3
from structlog.testing import capture_logs

from viiwork_core import (
    Address,
    CacheFile,
    CacheLimits,
    CacheRefused,
    CacheTransfer,
    CommandOutput,
    Context,
    EngineRefused,
    NoOptions,
    Saved,
    SessionRef,
    Spec,
)
from viiwork_core.clock import SystemClock
from viiwork_core.engines.slots import SlotBook, SlotState
from viiwork_core.engines.states import BackendState, BackendView
from viiwork_core.errors import CacheUnsupported, FingerprintMismatch
from viiwork_core.kvshare.caches import Caches, SharedModel
from viiwork_core.kvshare.deliveries import Deliveries
from viiwork_core.kvshare.handover import Handover
from viiwork_core.kvshare.replicas import ReplicaStore
from viiwork_core.kvshare.sealing import ReplicaLabel, TransferHeader, seal
from viiwork_core.kvshare.sending import Delivery, Save, Sender
from viiwork_core.kvshare.turns import Turn, Usage
from viiwork_core.mesh.member import Member
from viiwork_core.node.background import Background

T = TypeVar("T")

KEY = b"k" * 32
PEER = Member(node="b", node_id="b1", host="127.0.0.1", api_port=1)
SESSION, OTHER = "5e" * 16, "07" * 16
CLOCK = SystemClock()


class Files(CacheTransfer):
    """An engine whose cache is a count of tokens, and whose cache file is that count in words."""

    engine = "files"

    def __init__(self, context: Context) -> None:
        super().__init__(NoOptions(), context)
        self.live = 0
        self.still: int | None = None
        self.covered: int | None = None
        self.says: int | None = None
        self.refuses = False
        self.never = False
        self.silent = False
        self.asked = 0
        self.restored: list[str] = []

    async def fingerprint(self, spec: Spec, address: Address) -> Mapping[str, str]:
        return {"model": "m"}

    async def save(self, spec: Spec, address: Address, session: SessionRef, name: str) -> Saved:
        self._check()
        if self.silent:
            await asyncio.Event().wait()
        path = folder(spec) / name
        path.write_text(str(self.live))
        return Saved(self.live if self.says is None else self.says, path.stat().st_size)

    async def restore(self, spec: Spec, address: Address, session: SessionRef, name: str) -> int:
        self._check()
        if self.refuses:
            raise EngineRefused("no room")
        self.restored.append(session.key)
        self.live = int((folder(spec) / name).read_text())
        return self.live

    def _check(self) -> None:
        self.asked += 1
        if self.never:
            raise CacheUnsupported("501: session files are off")

    async def holds(self, spec: Spec, address: Address, session: SessionRef) -> int | None:
        return self.still

    def read(self, path: Path) -> CacheFile:
        return CacheFile(int(path.read_text()), None, ())

    async def covers(self, spec: Spec, address: Address, file: CacheFile, path: str, body: bytes) -> int | None:
        return self.covered


def folder(spec: Spec) -> Path:
    assert spec.cache_dir is not None
    return spec.cache_dir


class Here:
    """A control loop that is the test's own."""

    def __init__(self) -> None:
        self.meanwhile: list[Callable[[], None]] = []
        """What happens before each of the next calls gets there."""

    async def call(self, make: Callable[[], Awaitable[T]]) -> T:
        if self.meanwhile:
            self.meanwhile.pop(0)()
        return await make()


class Offers(Sender[Member]):
    """A sender that only takes note."""

    def __init__(self) -> None:
        super().__init__(_nowhere, KEY, CLOCK, max_bytes=1)
        self.taken: list[Save[Member]] = []

    def offer(self, save: Save[Member]) -> None:
        self.taken.append(save)


async def _nowhere(target: Member, stream: object) -> None:
    raise AssertionError("nothing is sent here")


async def _no_command(argv: object) -> CommandOutput:
    raise EngineRefused("no command is expected")


async def _no_digest(path: Path) -> str:
    raise EngineRefused("no digest is expected")


@dataclass
class Bench:
    folder: Path
    engine: Files
    book: SlotBook
    store: ReplicaStore
    sender: Offers
    target: Member | None = PEER
    deliveries: Deliveries = field(default_factory=Deliveries)
    control: Here = field(default_factory=Here)
    caches: Caches = field(init=False)

    def __post_init__(self) -> None:
        spec = Spec("m", 0, 1, None, 4096, 2, cache_dir=self.folder / "engine")
        folder(spec).mkdir()
        self.caches = Caches(
            {"m": SharedModel("g", 100, self.engine, {"m/0": spec})},
            slotted={"m": True},
            book=self.book,
            store=self.store,
            sender=self.sender,
            control=self.control,
            target=lambda *_: self.target,
            clock=CLOCK,
            deliveries=self.deliveries,
        )

    def turn(self, session: str = SESSION, *, prefer: int | None = None) -> Turn:
        reservation = self.book.reserve("m/0", prefer=prefer)
        assert reservation is not None
        return Turn(session, reservation, "/v1/chat/completions", b"{}")

    def keep(self, tokens: int, *, turn: int = 1, **label: str) -> None:
        """Put a replica of the session into the store."""
        content = str(tokens).encode()
        arrival = self.store.begin(_header(tokens, turn, len(content), **label))
        arrival.write([content])
        arrival.commit(blake3(content).hexdigest())

    def held(self, session: str = SESSION) -> tuple[int | None, int] | None:
        return self.caches.held(self.book.view("m/0"), session)

    async def served(self, turn: Turn, usage: Usage) -> None:
        self.caches.occupy(turn.reservation, turn.session)
        await self.caches.after(turn, usage)
        self.book.release(turn.reservation)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    book = SlotBook(CLOCK)
    view = BackendView(
        "m/0", "m", "files", BackendState.HEALTHY, 1, 2, address=Address("127.0.0.1", 1), context=4096, fingerprint="f"
    )
    book.see(view)
    store = ReplicaStore(tmp_path / "replicas", 1 << 20, CLOCK).open()
    engine = Files(Context("a", tmp_path, _no_command, _no_digest))

    async def made() -> Bench:
        return Bench(tmp_path, engine, book, store, Offers())

    return asyncio.run(made())


def test_a_newer_replica_is_imported_and_noted(bench: Bench) -> None:
    async def scene() -> None:
        bench.keep(500, turn=3)
        turn = bench.turn()
        await bench.caches.before(turn)
        assert bench.engine.restored == [SESSION]
        assert bench.held() == (turn.reservation.slot, 500)
        assert bench.caches.turn_of(SESSION) == 3
        assert not list((bench.folder / "engine").iterdir()), "the engine's copy is left behind"

    asyncio.run(scene())


def test_a_replica_that_a_newer_one_replaces_is_left_for_it(bench: Bench) -> None:
    async def scene() -> None:
        bench.keep(500, turn=3)
        bench.control.meanwhile = [lambda: bench.keep(600, turn=4)]
        turn = bench.turn()
        with capture_logs() as lines:
            await bench.caches.before(turn)
        assert [line["event"] for line in lines] == ["kv imported"]
        assert bench.held() == (turn.reservation.slot, 600)
        assert bench.caches.turn_of(SESSION) == 4
        counts = bench.caches.tally.of("m")
        assert (counts.imported, counts.import_failed) == (1, 0)

    asyncio.run(scene())


def test_a_newer_replica_is_decided_on_like_any_other(bench: Bench) -> None:
    async def scene() -> None:
        bench.keep(500, turn=3)
        bench.control.meanwhile = [lambda: bench.keep(600, turn=4, fingerprint="another")]
        with capture_logs() as lines:
            await bench.caches.before(bench.turn())
        assert [line["event"] for line in lines] == ["kv import skipped"]
        assert bench.engine.restored == []

    asyncio.run(scene())


@pytest.mark.parametrize("newer", [2, 0], ids=["replaced twice", "dropped"])
def test_a_replica_is_looked_for_once_more_and_no_longer(bench: Bench, newer: int) -> None:
    async def scene() -> None:
        bench.keep(500, turn=3)
        bench.control.meanwhile = [partial(bench.keep, 600, turn=turn) for turn in range(4, 4 + newer)]
        if not newer:
            bench.control.meanwhile = [lambda: bench.store.forget(SESSION)]
        with capture_logs() as lines:
            await bench.caches.before(bench.turn())
        assert [line["event"] for line in lines] == ["kv import failed"]
        assert "no longer kept" in lines[0]["reason"]
        assert bench.engine.restored == []
        assert bench.caches.tally.of("m").import_failed == 1

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("cached", "prompt", "warmth"),
    [(500, 510, "warm"), (200, 510, "partly"), (0, 510, "cold"), (None, None, "unknown")],
)
def test_turns_after_an_import_are_counted_by_what_they_reused(
    bench: Bench, cached: int | None, prompt: int | None, warmth: str
) -> None:
    async def scene() -> None:
        bench.keep(500, turn=3)
        turn = bench.turn()
        await bench.caches.before(turn)
        await bench.served(turn, Usage(prompt, cached, 3))
        await bench.served(bench.turn(), Usage(520, 0, 3))
        assert bench.caches.imports == {("m", warmth): 1}, "and no other turn"

    asyncio.run(scene())


def test_a_failed_import_costs_a_cold_turn_and_the_slots_content(bench: Bench) -> None:
    async def scene() -> None:
        first = bench.turn()
        await bench.served(first, Usage(150, 0, 50))
        bench.keep(500, turn=7)
        bench.engine.refuses = True
        again = bench.turn(prefer=first.reservation.slot)
        await bench.caches.before(again)
        assert bench.held() is None
        assert bench.engine.restored == []
        await bench.caches.after(again, Usage(600, 0, 10))
        assert bench.held() == (again.reservation.slot, 610)
        assert bench.caches.turn_of(SESSION) == 8, "turns are counted on from the newest known, imported or not"

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("covered", "extends_only", "imported"),
    [(None, False, True), (450, False, True), (100, False, False), (450, True, False), (500, True, True)],
)
def test_the_prompt_must_share_enough_with_the_replica(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, covered: int | None, extends_only: bool, imported: bool
) -> None:
    monkeypatch.setattr(Files, "limits", CacheLimits(extends_only=extends_only))

    async def scene() -> None:
        bench.keep(500)
        bench.engine.covered = covered
        await bench.caches.before(bench.turn())
        assert bool(bench.engine.restored) is imported

    asyncio.run(scene())


@pytest.mark.parametrize(("still", "imported"), [(None, False), (200, False), (0, True)])
def test_an_import_is_never_skipped_because_one_is_remembered(bench: Bench, still: int | None, imported: bool) -> None:
    """The engine is asked: what it no longer holds is imported again."""

    async def scene() -> None:
        bench.keep(500, turn=1)
        first = bench.turn()
        await bench.served(first, Usage(150, 0, 50))
        assert bench.caches.turn_of(SESSION) == 1
        bench.engine.still = still
        await bench.caches.before(bench.turn(prefer=first.reservation.slot))
        assert bool(bench.engine.restored) is imported

    asyncio.run(scene())


def test_a_turn_is_saved_and_offered_with_its_label(bench: Bench) -> None:
    async def scene() -> None:
        bench.engine.live = 199
        turn = bench.turn()
        bench.caches.occupy(turn.reservation, SESSION)
        await bench.caches.after(turn, Usage(150, 0, 50))
        (save,) = bench.sender.taken
        label = ReplicaLabel(model="m", group="g", fingerprint="f", session=SESSION, turn=1, tokens=199)
        assert (save.label, save.target, save.path.read_text()) == (label, PEER, "199")
        assert bench.book.states("m/0")[turn.reservation.slots[0]] is SlotState.SAVING

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("usage", "target"),
    [(Usage(50, 0, 10), PEER), (Usage(150, 0, 50), None), (Usage(150, 0, None), PEER), (Usage(), PEER)],
    ids=["under min_tokens", "nobody to send to", "no count", "no usage"],
)
def test_what_does_not_pay_is_not_saved(bench: Bench, usage: Usage, target: Member | None) -> None:
    async def scene() -> None:
        bench.target, bench.engine.live = target, 199
        await bench.served(bench.turn(), usage)
        assert bench.sender.taken == []
        assert not list((bench.folder / "engine").iterdir())

    asyncio.run(scene())


@pytest.mark.parametrize(("live", "says"), [(20, None), (900, None), (199, 150)], ids=["short", "long", "contradicts"])
def test_a_save_of_another_session_is_not_labelled(bench: Bench, live: int, says: int | None) -> None:
    """A count that is not the turn's is another session's cache, or half of one."""

    async def scene() -> None:
        bench.engine.live, bench.engine.says = live, says
        await bench.served(bench.turn(), Usage(150, 0, 50))
        assert bench.sender.taken == []
        assert not list((bench.folder / "engine").iterdir())

    asyncio.run(scene())


@pytest.mark.parametrize("imports", [True, False])
def test_an_engine_that_never_saves_is_asked_once_and_the_model_is_off_with_one_warning(
    bench: Bench, imports: bool
) -> None:
    async def scene() -> None:
        bench.engine.never = True
        for number in range(3):
            turn = bench.turn(f"{number}" * 32)
            if imports:
                bench.keep(500, session=turn.session)
                await bench.caches.before(turn)
            await bench.served(turn, Usage(600, 0, 50))
        assert bench.engine.asked == 1
        assert bench.caches.unmovable("m", "f") == "501: session files are off"
        with pytest.raises(CacheRefused, match="501: session files are off"):
            await bench.caches.take(_sealed(model="m", group="g", fingerprint="f"), KEY)

    with capture_logs() as lines:
        asyncio.run(scene())
    assert [line["log_level"] for line in lines if line["event"] == "kv_share is off for a model"] == ["warning"]


def test_a_save_that_is_never_answered_is_given_up_with_the_grace_of_a_stop(bench: Bench) -> None:
    async def scene() -> None:
        bench.engine.silent = True
        background, turn = Background(0.01), bench.turn()
        async with background, AsyncExitStack() as stack:
            stack.push_async_callback(background.settle)
            background.start(bench.caches.after(turn, Usage(600, 0, 50)))
            await asyncio.sleep(0)
        assert bench.engine.asked == 1
        assert bench.sender.taken == []
        assert list(folder(bench.caches._models["m"].spec(turn.reservation)).iterdir()) == []

    asyncio.run(scene())


def test_a_slot_taken_by_another_request_holds_the_session_no_longer(bench: Bench) -> None:
    async def scene() -> None:
        first = bench.turn()
        await bench.served(first, Usage(150, 0, 50))
        broken_off = bench.turn(prefer=first.reservation.slot)
        bench.caches.occupy(broken_off.reservation, SESSION)
        bench.book.release(broken_off.reservation)
        assert bench.held() is not None, "a turn of the session itself leaves its prefix"
        stranger = bench.turn(OTHER, prefer=first.reservation.slot)
        bench.caches.occupy(stranger.reservation, None)
        assert bench.held() is None

    asyncio.run(scene())


@pytest.mark.parametrize("label", [{"group": "h"}, {"fingerprint": "e"}, {"model": "n"}])
def test_a_replica_that_does_not_fit_is_refused(bench: Bench, label: dict[str, str]) -> None:
    async def scene() -> None:
        with pytest.raises(FingerprintMismatch):
            await bench.caches.take(_sealed(**label), KEY)
        assert bench.store.used == 0

    asyncio.run(scene())


def test_a_replica_that_fits_is_kept_and_its_turn_known(bench: Bench) -> None:
    async def scene() -> None:
        replica = await bench.caches.take(_sealed(), KEY)
        assert bench.store.find("m", SESSION) == replica
        assert bench.caches.turn_of(SESSION) == 9

    asyncio.run(scene())


def test_a_node_that_shares_nothing_takes_nothing(bench: Bench) -> None:
    async def scene() -> None:
        alone = Caches(
            {},
            slotted={},
            book=bench.book,
            store=None,
            sender=None,
            control=Here(),
            target=lambda *_: None,
            clock=CLOCK,
        )
        with pytest.raises(CacheRefused):
            await alone.take(_sealed(), KEY)

    asyncio.run(scene())


def _header(tokens: int, turn: int, length: int, **changes: str) -> TransferHeader:
    label: dict[str, Any] = {"model": "m", "group": "g", "fingerprint": "f", "session": SESSION, **changes}
    return TransferHeader(turn=turn, tokens=tokens, length=length, **label)


async def _sealed(**label: str) -> AsyncIterator[bytes]:
    content = b"500"
    header = _header(500, 9, len(content), **label)
    for piece in seal(KEY, header, [content], lambda: blake3(content).digest()):
        yield bytes(piece)


def test_a_turn_ends_well_when_its_model_is_gone_or_has_fewer_backends(bench: Bench) -> None:
    async def scene() -> None:
        bench.engine.live = 199
        for shared in ({}, {"m": SharedModel("g", 100, bench.engine, {})}):
            turn = bench.turn()
            bench.caches.follow(shared, slotted=dict.fromkeys(shared, True))
            await bench.served(turn, Usage(150, 0, 50))
            await bench.caches.before(bench.turn())
        bench.book.forget("m/0")
        assert bench.sender.taken == []
        with pytest.raises(FingerprintMismatch):
            await bench.caches.take(_sealed(), KEY)

    asyncio.run(scene())


def test_a_model_that_is_new_is_shared_from_its_first_turn(bench: Bench) -> None:
    async def scene() -> None:
        spec = Spec("m", 0, 1, None, 4096, 2, cache_dir=bench.folder / "engine")
        bench.engine.live = 199
        bench.caches.follow({}, slotted={})
        bench.caches.follow({"m": SharedModel("g", 100, bench.engine, {"m/0": spec})}, slotted={"m": True})
        await bench.served(bench.turn(), Usage(150, 0, 50))
        assert len(bench.sender.taken) == 1

    asyncio.run(scene())


# A node that takes no new work


async def handed_over(
    bench: Bench,
    *,
    answer: str | None = None,
    elsewhere: int = 0,
    over: Callable[[], bool] = lambda: True,
) -> Handover:
    """The outcome when every save that is offered meanwhile is taken, or refused with `answer`."""
    handover, seen = bench.caches.handover(), len(bench.sender.taken)

    def ended() -> bool:
        nonlocal seen
        for save in bench.sender.taken[seen:]:
            bench.deliveries.ended(Delivery(save, answer, 1, 0.1))
        seen = len(bench.sender.taken)
        return over()

    async with asyncio.timeout(10):
        await handover.run(ended, lambda *_: elsewhere)
    return handover


USAGE = Usage(prompt=180, cached=0, completion=20)


def test_all_sessions_are_saved_and_sent_also_those_that_would_not_have_been(bench: Bench) -> None:
    async def scene() -> None:
        bench.target, bench.engine.live = None, 200
        await bench.served(bench.turn(), USAGE)
        await bench.served(bench.turn(OTHER), USAGE)
        bench.target = PEER
        handover = await handed_over(bench)
        assert {(one.label.session, one.label.turn, one.label.tokens) for one in bench.sender.taken} == {
            (SESSION, 1, 200),
            (OTHER, 1, 200),
        }
        assert handover.told() == {"moved": 2, "there": 0, "short": 0, "unshared": 0, "remaining": 0, "left": []}
        assert set(bench.book.states("m/0")) == {SlotState.FREE}

    asyncio.run(scene())


def test_what_another_member_has_already_is_not_sent_again(bench: Bench) -> None:
    async def scene() -> None:
        bench.engine.live = 200
        await bench.served(bench.turn(), USAGE)
        (save,) = bench.sender.taken
        bench.deliveries.ended(Delivery(save, None, 1, 0.1))
        handover = await handed_over(bench)
        assert (handover.told()["there"], len(bench.sender.taken)) == (1, 1)
        # The member that has it is gone: another one gets it.
        bench.target = Member(node="c", node_id="c1", host="127.0.0.1", api_port=1)
        assert (await handed_over(bench)).told()["moved"] == 1

    asyncio.run(scene())


def test_what_is_on_its_way_is_waited_for(bench: Bench) -> None:
    async def scene() -> None:
        bench.engine.live = 200
        await bench.served(bench.turn(), USAGE)
        (save,) = bench.sender.taken
        looks = 0

        def over() -> bool:
            nonlocal looks
            looks += 1
            if looks == 2:
                bench.deliveries.ended(Delivery(save, None, 1, 0.1))
            return True

        assert (await handed_over(bench, over=over)).told()["there"] == 1
        assert looks == 2
        assert len(bench.sender.taken) == 1

    asyncio.run(scene())


def test_why_a_session_is_left_is_told(bench: Bench) -> None:
    async def scene() -> None:
        bench.target, bench.engine.live = None, 200
        await bench.served(bench.turn(), USAGE)
        told = (await handed_over(bench)).told()
        assert told["left"] == [
            {"model": "m", "session": SESSION, "reason": "no other member of the group can take it"}
        ]
        bench.target = PEER
        told = (await handed_over(bench, answer="b: the store is full")).told()
        assert (told["remaining"], told["left"][0]["reason"]) == (1, "b: the store is full")
        bench.engine.live = 900
        told = (await handed_over(bench)).told()
        assert told["left"][0]["reason"].startswith("the file holds 900 tokens")

    asyncio.run(scene())


def test_short_sessions_and_those_of_other_models_are_counted(bench: Bench) -> None:
    async def scene() -> None:
        await bench.served(bench.turn(), Usage(prompt=20, cached=0, completion=20))
        handover = await handed_over(bench)
        assert (handover.told()["short"], bench.sender.taken) == (1, [])
        bench.caches.follow({}, slotted={"m": True})
        assert (await handed_over(bench)).told()["unshared"] == 1

    asyncio.run(scene())


def test_a_session_whose_turn_still_runs_is_moved_when_it_has_ended(bench: Bench) -> None:
    async def scene() -> None:
        bench.target, bench.engine.live = None, 200
        await bench.served(bench.turn(), USAGE)
        running = bench.turn(prefer=0)
        bench.target = PEER
        ended = False

        async def end() -> None:
            nonlocal ended
            await bench.served(running, USAGE)
            ended = True

        later = asyncio.get_running_loop().call_later(0.15, lambda: tasks.append(asyncio.ensure_future(end())))
        tasks: list[asyncio.Future[None]] = []
        handover = await handed_over(bench, over=lambda: ended)
        later.cancel()
        assert handover.outcomes[("m", SESSION)] in {"moved", "there"}
        assert max(save.label.turn for save in bench.sender.taken) == 2

    asyncio.run(scene())


def test_a_replica_that_no_other_member_has_is_passed_on(bench: Bench) -> None:
    async def scene() -> None:
        bench.keep(500, turn=3)
        bench.caches.found([("m", SESSION)])
        assert (await handed_over(bench, elsewhere=3)).outcomes == {}, "its live cache is at another member"
        handover = await handed_over(bench)
        (save,) = bench.sender.taken
        assert (save.label.turn, save.label.tokens, save.path.read_text()) == (3, 500, "500")
        assert handover.told()["moved"] == 1
        save.path.unlink()
        assert bench.store.find("m", SESSION) is not None, "the sender's file is a link of its own"

    asyncio.run(scene())
