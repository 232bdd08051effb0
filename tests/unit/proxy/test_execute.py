"""Running a request on a reservation: whatever happens, the slot is released once, and opened when that is right."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest

from viiwork_core.clock import SystemClock
from viiwork_core.contracts.engine import Address, Load, SlotLoad, StreamEnd, Wire
from viiwork_core.contracts.policy import Score
from viiwork_core.engines.slots import SlotBook, SlotState
from viiwork_core.engines.states import BackendState, BackendView
from viiwork_core.errors import AnswerCut, BackendFailed, NoFreeSlot, NotFound, ViiworkError
from viiwork_core.kvshare.turns import Turn, Usage
from viiwork_core.proxy import patience
from viiwork_core.proxy.body import Body
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.execute import Executor
from viiwork_core.proxy.request import Whose, build
from viiwork_core.proxy.upstream import Upstream

CHAT = "/v1/chat/completions"
JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n7\r\ndata: a\r\n"
FREE, RUNNING, SAVING, ABORTING = SlotState.FREE, SlotState.RUNNING, SlotState.SAVING, SlotState.ABORTING


class Caches:
    """Stands in for what moves caches; a test says how long that takes."""

    shares = True

    def __init__(self, book: SlotBook) -> None:
        self.book = book
        self.may_end = asyncio.Event()
        self.turns: list[tuple[Turn, Usage]] = []
        self.before_it: Callable[[Turn], Awaitable[None]] | None = None

    async def before(self, turn: Turn) -> None:
        if self.before_it is not None:
            await self.before_it(turn)

    def turn_of(self, session: str) -> int:
        return len(self.turns)

    def occupy(self, reservation: object, session: object) -> None:
        pass

    async def after(self, turn: Turn, usage: Usage) -> None:
        self.book.enter(turn.reservation, SAVING)
        await self.may_end.wait()
        self.turns.append((turn, usage))


class Scene:
    """A backend with one slot whose engine says `reply` to everything, then waits for its client to leave."""

    def __init__(self, reply: bytes, wire: Wire, port: int) -> None:
        self.book = SlotBook(SystemClock())
        address = Address("127.0.0.1", port)
        self.view = BackendView("m/0", "m", "fake", BackendState.HEALTHY, 1, 1, address=address)
        self.book.see(self.view)
        self.caches = Caches(self.book)
        self.wire = wire
        self.pokes: list[str] = []
        self.released = 0
        self.background: list[asyncio.Task[None]] = []
        self.sent: list[Any] = []
        self.sending: Callable[[], Awaitable[None]] | None = None
        self.patience: float | None = 30.0
        self.score: Score | None = None

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.background.append(asyncio.ensure_future(work))

    def count(self) -> None:
        self.released += 1

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        if self.sending is not None:
            await self.sending()

    async def run(self, upstream: Upstream, *, raw: bytes = b'{"model":"m"}', path: str = CHAT, **more: Any) -> None:
        """Raises what the executor raises."""
        scope = {"path": path, "raw_path": path.encode(), "query_string": b"", "headers": []}
        request = build(scope, Body(raw), Whose(more.get("session")), pin=None, rid="r")
        executor = Executor(
            node="here",
            book=self.book,
            wires={"m": self.wire},
            upstream=upstream,
            caches=self.caches,  # type: ignore[arg-type]  # stands in
            clock=SystemClock(),
            spawn=self.spawn,
            released=self.count,
            poke=self.pokes.append,
            first_byte_timeout=lambda _: self.patience,
            score=lambda _: self.score,
        )
        taken = self.book.reserve("m/0")
        assert taken is not None
        self.exchange = Exchange(request, self.send)
        await executor.run(self.exchange, taken)

    def hear(self, *, busy: bool) -> None:
        """What the engine says of its load from now on, in a report that is asked for now."""
        load = Load(1, int(busy), each=(SlotLoad(0, busy),))
        self.book.see(replace(self.view, load=load, load_asked_at=SystemClock().monotonic()))

    @property
    def trusted(self) -> bool:
        """Whether its backend has neither refused nor failed last."""
        return self.book.trusts("m")

    @property
    def state(self) -> SlotState:
        (state,) = self.book.states("m/0")
        return state


@asynccontextmanager
async def scene(reply: bytes | None, **wire: Any) -> AsyncIterator[tuple[Scene, Upstream]]:
    """`reply` None: the port is shut; ending with "cut": the connection ends there."""
    left = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        await reader.readexactly(length)
        assert reply is not None
        writer.write(reply.removesuffix(b"cut"))
        if reply.endswith(b"cut"):
            writer.close()
            return
        await reader.read()
        left.set()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    if reply is None:
        server.close()
    async with server, Upstream() as upstream:
        made = Scene(reply or b"", Wire(endpoints=frozenset({CHAT}), **wire), port)
        yield made, upstream
        for task in made.background:
            task.cancel()
        await asyncio.gather(*made.background, return_exceptions=True)


async def eventually(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not holds():  # noqa: ASYNC110  # nobody tells
            await asyncio.sleep(0.005)


def test_a_request_that_ends_well_frees_its_slot_before_its_client_knows() -> None:
    async def play() -> None:
        async with scene(JSON) as (made, upstream):
            await made.run(upstream)
            assert (made.state, made.released, made.pokes) == (FREE, 1, [])
            assert [one["type"] for one in made.sent] == ["http.response.start"], "its end is still to be sent"
            await made.exchange.finish()
            assert made.sent[-1] == {"type": "http.response.body", "body": b"{}", "more_body": False}

    asyncio.run(play())


@pytest.mark.parametrize(
    ("reply", "error"),
    [
        (None, BackendFailed),
        (b"cut", BackendFailed),
        (b"not http at all cut", BackendFailed),
        (b"HTTP/1.1 503 Busy\r\ncontent-length: 0\r\n\r\n", NoFreeSlot),
        (b"HTTP/1.1 429 Busy\r\ncontent-length: 0\r\n\r\n", NoFreeSlot),
        (STREAM + b"cut", AnswerCut),
    ],
)
def test_a_slot_whose_request_ended_early_opens_when_the_engine_says_so(
    reply: bytes | None, error: type[ViiworkError]
) -> None:
    async def play() -> None:
        async with scene(reply) as (made, upstream):
            with pytest.raises(error):
                await made.run(upstream)
            assert (made.state, made.released) == (ABORTING, 1)
            await eventually(lambda: len(made.pokes) >= 2)

    asyncio.run(play())


def test_a_slot_whose_request_was_never_sent_is_free_at_once() -> None:
    async def play() -> None:
        async with scene(JSON) as (made, upstream):
            with pytest.raises(NotFound):
                await made.run(upstream, path="/v1/embeddings")
            assert (made.state, made.released, made.pokes) == (FREE, 1, [])

    asyncio.run(play())


@pytest.mark.parametrize("reply", [b"", STREAM])
def test_a_client_that_leaves_closes_the_connection_to_the_engine(reply: bytes) -> None:
    async def play() -> None:
        async with scene(reply) as (made, upstream):
            work = asyncio.ensure_future(made.run(upstream))
            await eventually(lambda: made.state is RUNNING)
            if reply:
                await eventually(lambda: len(made.sent) > 1)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            assert (made.state, made.released) == (ABORTING, 1)

    asyncio.run(play())


def test_a_defect_on_the_way_leaves_the_slot_to_the_engine() -> None:
    async def breaks() -> None:
        raise RuntimeError("the server's fault")

    async def play() -> None:
        async with scene(STREAM) as (made, upstream):
            made.sending = breaks
            with pytest.raises(RuntimeError):
                await made.run(upstream)
            assert (made.state, made.released) == (ABORTING, 1)

    asyncio.run(play())


def test_a_save_holds_the_slot_and_not_the_client() -> None:
    async def play() -> None:
        async with scene(JSON) as (made, upstream):
            await made.run(upstream, session="5e5e")
            await made.exchange.finish()
            await eventually(lambda: made.state is SAVING)
            assert made.released == 0
            made.caches.may_end.set()
            await eventually(lambda: made.state is FREE)
            assert made.released == 1
            ((turn, _),) = made.caches.turns
            assert (turn.session, turn.path, turn.body) == ("5e5e", CHAT, b'{"model":"m"}')

    asyncio.run(play())


def test_a_save_that_breaks_frees_the_slot_all_the_same() -> None:
    async def play() -> None:
        async with scene(JSON) as (made, upstream):
            await made.run(upstream, session="5e5e")
            await eventually(lambda: made.state is SAVING)
            made.background[0].cancel()
            await eventually(lambda: made.state is FREE)

    asyncio.run(play())


@pytest.mark.parametrize("status", [b"400 Bad", b"500 Oops"])
def test_what_the_engine_refused_is_not_saved(status: bytes) -> None:
    async def play() -> None:
        async with scene(JSON.replace(b"200 OK", status)) as (made, upstream):
            await made.run(upstream, session="5e5e")
            assert (made.state, made.background) == (FREE, [])

    asyncio.run(play())


def test_a_client_that_leaves_during_an_import_leaves_the_slot_to_the_engine() -> None:
    async def hangs(turn: Turn) -> None:
        await asyncio.Event().wait()

    async def play() -> None:
        async with scene(JSON) as (made, upstream):
            made.caches.before_it = hangs
            work = asyncio.ensure_future(made.run(upstream, session="5e5e"))
            await asyncio.sleep(0)
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            assert made.state is ABORTING

    asyncio.run(play())


def test_an_engine_that_must_not_be_interrupted_is_read_to_the_end() -> None:
    async def play() -> None:
        async with scene(STREAM + b"0\r\n\r\n", drain_on_abort=True) as (made, upstream):
            stuck = asyncio.Event()
            made.sending = stuck.wait  # type: ignore[assignment]
            work = asyncio.ensure_future(made.run(upstream))
            await eventually(lambda: bool(made.sent))
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work
            assert made.state is RUNNING
            stuck.set()
            await eventually(lambda: made.state is FREE)
            assert len(made.sent) == 1, "nothing more is sent to a client that is gone"

    asyncio.run(play())


def test_a_stream_that_only_done_proves_gives_what_it_has_and_breaks() -> None:
    closing = b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: x"

    async def play() -> None:
        async with scene(closing + b"cut", keep_alive=False, stream_end=StreamEnd.DONE) as (made, upstream):
            with pytest.raises(AnswerCut, match="without"):
                await made.run(upstream)
            assert b"".join(one.get("body", b"") for one in made.sent) == b"data: x"
            assert all(one.get("more_body", True) for one in made.sent)

    asyncio.run(play())


def test_a_large_body_has_its_length_and_arrives_whole() -> None:
    async def play() -> None:
        async with scene(JSON) as (made, upstream):
            await made.run(upstream, raw=b'{"model":"m","pad":"' + b"x" * (3 << 20) + b'"}')
            assert made.state is FREE

    asyncio.run(play())


# Places that are to blame, and silence

STREAMED = b'{"model":"m","stream":true}'


@pytest.mark.parametrize(
    ("reply", "trusted"),
    [
        (JSON, True),
        (JSON.replace(b"200 OK", b"400 Bad"), True),
        (JSON.replace(b"200 OK", b"429 Busy"), False),
        (JSON.replace(b"200 OK", b"500 Oops"), False),
        (STREAM + b"cut", False),
    ],
)
def test_a_backend_is_blamed_for_what_is_its_own_fault(reply: bytes, trusted: bool) -> None:
    async def play() -> None:
        async with scene(reply) as (made, upstream):
            with suppress(ViiworkError):
                await made.run(upstream)
            made.hear(busy=False)
            assert made.trusted is trusted

    asyncio.run(play())


def test_a_stream_that_stays_silent_is_dropped_and_may_go_elsewhere() -> None:
    async def play() -> None:
        async with scene(b"") as (made, upstream):
            made.patience = 0.1
            with pytest.raises(BackendFailed, match=r"^no word for 0\.1 s$"):
                await made.run(upstream, raw=STREAMED)
            assert (made.state, made.released, made.sent) == (ABORTING, 1, [])
            made.hear(busy=False)
            assert not made.trusted

    asyncio.run(play())


def test_a_stream_that_has_begun_may_take_its_time() -> None:
    async def play() -> None:
        async with scene(STREAM) as (made, upstream):
            made.patience = 0.1
            work = asyncio.ensure_future(made.run(upstream, raw=STREAMED))
            done, _ = await asyncio.wait({work}, timeout=0.5)
            assert (done, made.state) == (set(), RUNNING)
            work.cancel()
            await asyncio.wait({work})
            made.hear(busy=False)
            assert made.trusted, "and a client that leaves then proves nothing"

    asyncio.run(play())


@pytest.mark.parametrize("busy", [True, False])
def test_a_plain_request_is_dropped_only_when_its_engine_says_that_it_does_nothing(
    busy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "AGAIN", 0.05)

    async def play() -> None:
        async with scene(b"", slot_field="id_slot") as (made, upstream):
            made.patience = 0.1
            work = asyncio.ensure_future(made.run(upstream))
            await eventually(lambda: made.state is RUNNING)
            made.hear(busy=busy)
            done, _ = await asyncio.wait({work}, timeout=0.5 if busy else 5)
            assert bool(done) is not busy
            work.cancel()
            await asyncio.wait({work})
            assert work.cancelled() is busy
            if not busy:
                assert isinstance(work.exception(), BackendFailed)

    asyncio.run(play())


@pytest.mark.parametrize(
    ("raw", "limit", "blamed"), [(STREAMED, 0.5, True), (STREAMED, 30.0, False), (b'{"model":"m"}', 0.5, False)]
)
def test_a_client_that_gives_up_after_a_long_silence_proves_something(raw: bytes, limit: float, blamed: bool) -> None:
    async def play() -> None:
        async with scene(b"") as (made, upstream):
            made.patience = limit
            work = asyncio.ensure_future(made.run(upstream, raw=raw))
            await eventually(lambda: made.state is RUNNING and made.exchange.silence(SystemClock().monotonic()) > 0.26)
            work.cancel()
            await asyncio.wait({work})
            made.hear(busy=False)
            assert made.trusted is not blamed

    asyncio.run(play())


def test_a_stream_may_be_silent_for_twice_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "SHORTEST", 0.01)

    async def play() -> None:
        async with scene(b"") as (made, upstream):
            made.patience, made.score = None, Score(100.0, 1.0)
            with pytest.raises(BackendFailed, match=r"no word for 0\.2"):
                await made.run(upstream, raw=b'{"model":"m","stream":true}')

    asyncio.run(play())
