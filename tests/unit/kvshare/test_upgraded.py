"""Both ends of a transfer past HTTP, on real TCP connections: what breaks, is refused, is silent or is given up."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import psutil
import pytest

from viiwork_core import Segment, SegmentKind
from viiwork_core.clock import SystemClock
from viiwork_core.errors import BaseMissing, CacheRefused, FingerprintMismatch
from viiwork_core.kvshare import upgraded
from viiwork_core.kvshare.delta import delta_blocks
from viiwork_core.kvshare.incoming import Reception
from viiwork_core.kvshare.pace import Pace
from viiwork_core.kvshare.receiving import receive
from viiwork_core.kvshare.replicas import ReplicaStore
from viiwork_core.kvshare.sealing import BLOCK, Opener, TransferHeader
from viiwork_core.kvshare.streams import SealedFile, sealed_delta, sealed_file
from viiwork_core.kvshare.upgraded import Said, answer, give
from viiwork_core.proxy.request import UPGRADE, Upgrade
from viiwork_core.web.peers import replica

if TYPE_CHECKING:
    from conftest import Bench, ManualClock

pytestmark = pytest.mark.anyio

LARGE = 64 * BLOCK
"""More than any two socket buffers hold."""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def store(tmp_path: Path) -> ReplicaStore:
    """One that keeps what broke off."""
    return ReplicaStore(tmp_path / "replicas", 256 * BLOCK, SystemClock(), keep_partials_s=60).open()


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Of one connection: the sender's and the receiver's."""
    one, other = tcp()
    with closing(one), closing(other):
        yield one, other


def tcp() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        one = socket.create_connection(server.getsockname())
        return one, server.accept()[0]


def anything(_: TransferHeader) -> None:
    return


def others(_: TransferHeader) -> None:
    raise FingerprintMismatch("not of here")


class Receiver:
    """A member's API as far as one path goes, each request on a connection that has left HTTP."""

    def __init__(self, bench: Bench, store: ReplicaStore, accepts: Callable[[TransferHeader], None] = anything) -> None:
        self.reception, self.key = Reception(store, accepts, "rig1"), bench.key

    async def take_replica(self, _: str, carrier: Any) -> None:
        await receive(carrier, self.reception, self.key)

    async def serve(self, connection: socket.socket) -> None:
        """To the end. The connection is closed."""

        async def upgrade() -> socket.socket:
            return connection

        await self.asked(upgrade)

    async def asked(self, upgrade: Upgrade) -> None:
        """As `serve`, by a server that hands over what `upgrade` gives."""

        async def nothing(*_: object) -> Any:
            raise AssertionError("the server's HTTP is asked for nothing more")

        scope = {"headers": [(b"upgrade", b"viiwork-replica")], "http_version": "1.1", "state": {UPGRADE: upgrade}}
        claims = SimpleNamespace(upload=lambda _: "rig1")
        surface: Any = SimpleNamespace(claims=claims, take_replica=self.take_replica)
        await replica(surface, scope, nothing, nothing)


def head_of(connection: socket.socket) -> bytes:
    """Of an answer, and no byte more."""
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        assert byte, f"the connection ended after {head!r}"
        head += byte
    return head


@asynccontextmanager
async def accepted(
    bench: Bench, store: ReplicaStore, ends: tuple[socket.socket, socket.socket], accepts: Any = anything
) -> AsyncIterator[socket.socket]:
    """The sender's end of a connection that a member has taken out of HTTP. Everything has 30 seconds."""
    one, other = ends
    with anyio.fail_after(30):
        serving = asyncio.create_task(Receiver(bench, store, accepts).serve(other))
        await anyio.to_thread.run_sync(head_of, one)
        yield one
        await serving


def saved(folder: Path, data: bytes, name: str = "saved") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def sparse(folder: Path, size: int = LARGE) -> Path:
    path = folder / "sparse"
    with path.open("wb") as file:
        file.truncate(size)
    return path


def whole(bench: Bench, path: Path, pace: Pace | None = None, **changes: Any) -> SealedFile:
    header = bench.header(b"", length=path.stat().st_size, **changes)
    return sealed_file(path, bench.key, header, pace)


async def given(connection: socket.socket, stream: SealedFile) -> Said:
    async with aclosing(stream):
        return await give(connection, stream)


def code(said: Said) -> str:
    return str(json.loads(said.body)["error"]["code"])


def written(store: ReplicaStore) -> int:
    """Bytes of what is on its way, on the disk."""
    return sum(path.stat().st_size for path in store._folder.glob("*.tmp"))


def left(store: ReplicaStore) -> list[str]:
    return sorted(path.suffix for path in store._folder.iterdir())


@contextmanager
def nothing_left_open() -> Iterator[None]:
    """No file descriptor more than before."""
    before = psutil.Process().num_fds()
    yield
    assert psutil.Process().num_fds() <= before


async def test_a_whole_file_and_then_a_delta_arrive(bench: Bench, store: ReplicaStore, tmp_path: Path) -> None:
    first, second = (os.urandom(3 * BLOCK + 17), os.urandom(BLOCK))
    old, new = saved(tmp_path, first), saved(tmp_path, first + second, "newer")
    ends = tcp()
    async with accepted(bench, store, ends) as connection:
        assert await given(connection, whole(bench, old)) == Said(200, "", b'{"stored":true}')
    connection.close()
    kept = store.find("tiny", bench.session)
    assert kept is not None
    assert kept.path.read_bytes() == first
    assert kept.header == bench.stored(first, "rig1")

    rows = [(Segment(0, path.stat().st_size, SegmentKind.ROWS),) for path in (new, old)]
    header = bench.header(first + second, turn=2, base=kept.header.blake3)
    stream = sealed_delta(new, bench.key, header, delta_blocks(new, rows[0], old, rows[1]))
    ends = tcp()
    async with accepted(bench, store, ends) as connection:
        assert (await given(connection, stream)).status == 200
    connection.close()
    assert stream.sent < 2 * BLOCK
    assert stream.blake3 == bench.blake3(first + second)
    kept = store.find("tiny", bench.session)
    assert kept is not None
    assert kept.path.read_bytes() == first + second


async def test_a_refusal_of_the_header_is_heard_while_there_is_much_to_send(
    bench: Bench, store: ReplicaStore, tmp_path: Path
) -> None:
    """Each time: it is a race between the answer and a connection that closes on what was on its way."""
    path, said = sparse(tmp_path), []
    for _ in range(20):
        async with accepted(bench, store, tcp(), others) as connection:
            stream = whole(bench, path)
            said.append(await given(connection, stream))
            connection.close()
        assert stream.sent < LARGE
    assert {(one.status, code(one)) for one in said} == {(409, "fingerprint_mismatch")}
    assert left(store) == []


async def test_a_refusal_that_needs_nothing_of_the_stream_is_the_answer_to_the_request(
    bench: Bench, store: ReplicaStore, ends: tuple[socket.socket, socket.socket]
) -> None:
    """An HTTP client takes all that comes with a 101 for its own: so there is none."""
    one, other = ends
    member = Receiver(bench, store)

    async def refuse(_: str, __: object) -> None:
        raise CacheRefused("no model's caches are shared here")

    member.take_replica = refuse  # type: ignore[method-assign]
    serving = asyncio.create_task(member.serve(other))
    with anyio.fail_after(20):
        assert (await anyio.to_thread.run_sync(head_of, one)).startswith(b"HTTP/1.1 422 ")
        assert b"cache_refused" in await anyio.to_thread.run_sync(one.recv, 1 << 12)
        one.close()
        await serving


async def test_after_the_101_nothing_is_said_before_the_stream_begins(
    bench: Bench, store: ReplicaStore, ends: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    """An answer right behind it would end in the sender's HTTP client too."""
    async with accepted(bench, store, ends, others) as one:
        one.setblocking(False)
        with pytest.raises(BlockingIOError):
            one.recv(1)
        said = await given(one, whole(bench, sparse(tmp_path)))
        one.close()
    assert code(said) == "fingerprint_mismatch"


async def test_a_sender_that_left_before_it_was_answered_is_nobody(bench: Bench, store: ReplicaStore) -> None:
    """The server then has no socket to hand over, and nobody waits for an answer."""
    member = Receiver(bench, store)

    async def gone() -> socket.socket:
        raise OSError(errno.EBADF, "Bad file descriptor")

    await member.asked(gone)
    assert left(store) == []


async def test_a_session_that_is_forgotten_meanwhile_is_refused(
    bench: Bench, store: ReplicaStore, ends: tuple[socket.socket, socket.socket]
) -> None:
    pieces = bench.pieces(os.urandom(4 * BLOCK))
    async with accepted(bench, store, ends) as connection:
        await anyio.to_thread.run_sync(connection.sendall, b"".join(pieces[:3]))
        await bench.until(lambda: written(store) == 2 * BLOCK)
        store.forget(bench.session)
        await anyio.to_thread.run_sync(connection.sendall, b"".join(pieces[3:]))
        assert b" 422 " in await anyio.to_thread.run_sync(head_of, connection)
        connection.close()
    assert left(store) == []
    assert store.used == 0


@pytest.mark.parametrize("why", ["forgotten", "outdated"])
async def test_what_breaks_off_and_is_not_wanted_any_more_is_not_kept(
    bench: Bench, store: ReplicaStore, ends: tuple[socket.socket, socket.socket], why: str
) -> None:
    pieces = bench.pieces(os.urandom(4 * BLOCK))
    async with accepted(bench, store, ends) as connection:
        await anyio.to_thread.run_sync(connection.sendall, b"".join(pieces[:3]))
        await bench.until(lambda: written(store) == 2 * BLOCK)
        if why == "forgotten":
            store.forget(bench.session)
        else:
            bench.keep(store, b"newer", turn=2)
        connection.close()
    assert left(store) == ([] if why == "forgotten" else [".json", ".kv"])
    assert store.used == (0 if why == "forgotten" else 5)


async def test_a_stream_that_is_longer_than_it_said_is_refused_in_its_middle(
    bench: Bench, store: ReplicaStore, ends: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    lie = bench.header(b"", length=2 * BLOCK)
    blocks = (bytes(BLOCK) for _ in range(64))
    pieces = iter(bench.sealed(lie, blocks, b""))

    def frames(_: SealedFile) -> Any:
        yield from map(memoryview, pieces)

    async with accepted(bench, store, ends) as connection:
        said = await given(connection, SealedFile(frames))
        connection.close()
    assert code(said) == "cache_refused"
    assert "longer than" in said.body.decode()
    assert left(store) == []


@pytest.mark.parametrize("reset", [False, True])
async def test_what_broke_off_is_asked_for_and_goes_on_at_the_right_byte(
    bench: Bench, store: ReplicaStore, tmp_path: Path, reset: bool
) -> None:
    data = os.urandom(6 * BLOCK + 5)
    path, pieces = saved(tmp_path, data), bench.pieces(data)
    async with accepted(bench, store, tcp()) as connection:
        await anyio.to_thread.run_sync(connection.sendall, b"".join(pieces[:4]) + pieces[4][:1000])
        await bench.until(lambda: written(store) == 3 * BLOCK)
        if reset:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        connection.close()
    assert left(store) == [".tmp"]
    async with accepted(bench, store, tcp()) as connection:
        said = await given(connection, whole(bench, path, start=len(data)))
        connection.close()
    assert (said.status, code(said), said.offset) == (409, "resume", str(3 * BLOCK))
    async with accepted(bench, store, tcp()) as connection:
        stream = whole(bench, path, start=3 * BLOCK)
        said = await given(connection, stream)
        connection.close()
    assert said.status == 200
    assert stream.sent < 4 * BLOCK
    kept = store.find("tiny", bench.session)
    assert kept is not None
    assert kept.path.read_bytes() == data


@pytest.mark.parametrize("after", [0, 1, 200, BLOCK, LARGE // 2])
async def test_a_receiver_that_leaves_is_a_connection_that_broke(
    bench: Bench, ends: tuple[socket.socket, socket.socket], tmp_path: Path, after: int
) -> None:
    one, other = ends

    def leave() -> None:
        with closing(other):
            take(other, after)

    with anyio.fail_after(20):
        leaving = asyncio.create_task(anyio.to_thread.run_sync(leave))
        with pytest.raises(ConnectionError):
            await given(one, whole(bench, sparse(tmp_path)))
        await leaving


def take(connection: socket.socket, count: int) -> None:
    while count > 0:
        count -= len(connection.recv(min(count, 1 << 16)))


async def test_a_receiver_that_leaves_before_its_answer_is_a_connection_that_broke(
    bench: Bench, ends: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    one, other = ends
    data = os.urandom(1000)
    size = len(b"".join(bench.pieces(data)))
    stream = whole(bench, saved(tmp_path, data))

    def leave() -> None:
        with closing(other):
            take(other, size)

    with anyio.fail_after(20):
        leaving = asyncio.create_task(anyio.to_thread.run_sync(leave))
        with pytest.raises(ConnectionError, match="without an answer"):
            await given(one, stream)
        await leaving
    assert stream.sent == size


@pytest.mark.parametrize(
    "words",
    [
        b"no HTTP at all",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 200 OK\r\na: " + b"b" * 70_000,
        b"\xff\xfe\x00\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
async def test_an_answer_that_is_none_is_a_connection_that_broke_or_no_success(
    bench: Bench, ends: tuple[socket.socket, socket.socket], tmp_path: Path, words: bytes
) -> None:
    one, other = ends
    with anyio.fail_after(20):
        other.sendall(words)
        other.shutdown(socket.SHUT_WR)
        try:
            said = await given(one, whole(bench, sparse(tmp_path)))
        except OSError:
            return
        assert said.body == b"short", "and the sender has not sent all, which it knows"


async def test_an_answer_in_single_bytes_is_read(
    bench: Bench, ends: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    one, other = ends
    words = b"HTTP/1.1 409 Conflict\r\nx-viiwork-offset: 7\r\ncontent-length: 2\r\n\r\nno"

    def drip() -> None:
        other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in words:
            other.sendall(bytes([byte]))

    with anyio.fail_after(20):
        dripping = asyncio.create_task(anyio.to_thread.run_sync(drip))
        assert await given(one, whole(bench, sparse(tmp_path))) == Said(409, "7", b"no")
        await dripping


async def test_a_stream_in_single_bytes_arrives(
    bench: Bench, store: ReplicaStore, ends: tuple[socket.socket, socket.socket]
) -> None:
    stream = b"".join(bench.pieces(b"tiny"))

    def drip(connection: socket.socket) -> bytes:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in stream:
            connection.sendall(bytes([byte]))
        return head_of(connection)

    async with accepted(bench, store, ends) as connection:
        assert b" 200 " in await anyio.to_thread.run_sync(drip, connection)
        connection.close()


async def test_a_sender_that_falls_silent_is_left_and_can_go_on(
    monkeypatch: pytest.MonkeyPatch, bench: Bench, store: ReplicaStore, ends: tuple[socket.socket, socket.socket]
) -> None:
    monkeypatch.setattr(upgraded, "SILENCE_S", 0.2)
    pieces = bench.pieces(os.urandom(4 * BLOCK))
    async with accepted(bench, store, ends) as connection:
        await anyio.to_thread.run_sync(connection.sendall, b"".join(pieces[:3]))
        assert await anyio.to_thread.run_sync(connection.recv, 1) == b"", "without an answer: it is to try again"
    assert left(store) == [".tmp"]


async def test_a_sender_that_says_nothing_at_all_is_left(
    monkeypatch: pytest.MonkeyPatch, bench: Bench, store: ReplicaStore, ends: tuple[socket.socket, socket.socket]
) -> None:
    monkeypatch.setattr(upgraded, "SILENCE_S", 0.2)
    async with accepted(bench, store, ends) as connection:
        assert await anyio.to_thread.run_sync(connection.recv, 1) == b""
    assert left(store) == []


async def test_a_receiver_that_takes_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, bench: Bench, ends: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    monkeypatch.setattr(upgraded, "SILENCE_S", 0.2)
    with anyio.fail_after(20), pytest.raises(TimeoutError):
        await given(ends[0], whole(bench, sparse(tmp_path)))


async def test_an_answer_may_take_as_long_as_a_disk_does(
    bench: Bench, ends: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    sender, receiver = ends
    path = tmp_path / "saved"
    path.write_bytes(b"abc")
    limits: list[bytes] = []

    def take_all() -> None:
        opener = Opener(bench.key)
        for _ in upgraded.received(receiver, opener):
            pass
        # The sender waits for its answer now, or is about to.
        while not limits or any(limits[-1]):
            limits.append(sender.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, 16))
        receiver.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, take_all)
            assert (await given(sender, whole(bench, path))).status == 200
    assert not any(limits[-1]), "no limit of its own"


async def test_who_was_refused_and_goes_on_in_drips_is_left(
    monkeypatch: pytest.MonkeyPatch, ends: tuple[socket.socket, socket.socket]
) -> None:
    """A pause is waited for again and again, but not for ever."""
    monkeypatch.setattr(upgraded, "LINGER_MOST_S", 0.3)
    one, other = ends
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    over = threading.Event()

    def drip() -> None:
        while not over.wait(0.01):
            try:
                one.sendall(b"x")
            except OSError:
                return

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        with anyio.fail_after(10):
            await answer(other, b"HTTP/1.1 409 Conflict\r\n\r\n")
    finally:
        over.set()
        dripping.join()


async def test_an_answer_waits_for_all_that_was_on_its_way_in_small_pieces_too(
    monkeypatch: pytest.MonkeyPatch, ends: tuple[socket.socket, socket.socket]
) -> None:
    """The limit is one of bytes, and not of reads."""
    one, other = ends
    monkeypatch.setattr(upgraded, "LINGER_MOST", 1 << 17)
    one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def drip() -> bytes:
        for _ in range(5000):
            one.sendall(b"x")
            one.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        one.shutdown(socket.SHUT_WR)
        return one.recv(100)

    with anyio.fail_after(20):
        dripping = asyncio.create_task(anyio.to_thread.run_sync(drip))
        await answer(other, b"heard")
        other.close()
        assert await dripping == b"heard"


@pytest.mark.parametrize("native", [True, False])
async def test_a_sender_that_is_cancelled_ends_its_thread_and_closes_its_file(
    bench: Bench, tmp_path: Path, native: bool
) -> None:
    path = sparse(tmp_path)
    await _cancelled(bench, path, native)  # threads, and what else is made once
    threads = threading.active_count()
    with nothing_left_open():
        for _ in range(5):
            await _cancelled(bench, path, native)
    assert threading.active_count() < threads + 5, "each round would leave one; a pool may make one more"


async def _cancelled(bench: Bench, path: Path, native: bool, pace: Pace | None = None) -> None:
    one, other = tcp()
    stream, scope = whole(bench, path, pace), anyio.CancelScope()

    async def send() -> None:
        with scope:
            await given(one, stream)

    with closing(one), closing(other), anyio.fail_after(20):
        sending = asyncio.create_task(send())
        await bench.until(lambda: stream.sent > 0)
        if native:
            sending.cancel()
        else:
            scope.cancel()
        await asyncio.wait([sending])
        assert sending.cancelled() is native
        await anyio.to_thread.run_sync(take, other, stream.sent)


@pytest.mark.parametrize("begun", [True, False])
@pytest.mark.parametrize("native", [True, False])
async def test_a_receiver_that_is_cancelled_ends_its_thread_and_keeps_what_came(
    bench: Bench, store: ReplicaStore, native: bool, begun: bool
) -> None:
    pieces = bench.pieces(os.urandom(4 * BLOCK))
    sent = b"".join(pieces[:3]) if begun else pieces[0]

    async def cut() -> None:
        one, other = tcp()
        with closing(one), anyio.fail_after(20):
            scope = anyio.CancelScope()

            async def serve() -> None:
                with scope:
                    await Receiver(bench, store).serve(other)

            serving = asyncio.create_task(serve())
            await anyio.to_thread.run_sync(head_of, one)
            await anyio.to_thread.run_sync(one.sendall, sent)
            await bench.until(lambda: written(store) == (2 * BLOCK if begun else 0))
            if native:
                serving.cancel()
            else:
                scope.cancel()
            await asyncio.wait([serving])
            assert serving.cancelled() is native
            assert await anyio.to_thread.run_sync(one.recv, 1) == b""

    await cut()
    assert left(store) == ([".tmp"] if begun else [])
    threads = threading.active_count()
    store.partials.forget(bench.session)
    await bench.until(lambda: not left(store))
    with nothing_left_open():
        for _ in range(5):
            await cut()
            store.partials.forget(bench.session)
            await bench.until(lambda: not left(store))
    assert threading.active_count() < threads + 5, "each round would leave one; a pool may make one more"
    await bench.until(lambda: store.used == 0)  # a thread gives the room back, once the files are gone


@pytest.mark.parametrize("native", [True, False])
async def test_a_sender_with_a_limit_is_cancelled_at_once(bench: Bench, tmp_path: Path, native: bool) -> None:
    """And not once the next frame may go: at a byte each second that is in a day."""
    await _cancelled(bench, sparse(tmp_path), native, Pace(1, SystemClock()))


async def test_a_sender_with_a_limit_hears_a_refusal(bench: Bench, store: ReplicaStore, tmp_path: Path) -> None:
    """Also while it waits for its next frame's turn, which here would be in a minute."""
    async with accepted(bench, store, tcp(), others) as connection:
        pace = Pace(10_000, SystemClock())
        said = await given(connection, whole(bench, sparse(tmp_path), pace))
        connection.close()
    assert code(said) == "fingerprint_mismatch"


async def test_transfers_that_run_in_parallel_share_their_limit(
    bench: Bench, store: ReplicaStore, clock: ManualClock, tmp_path: Path
) -> None:
    """The last byte of both may go once as many seconds are over as both together have of the rate."""
    waited: list[float] = []

    class Hasty(Pace):
        def wait_s(self, size: int) -> float:
            waited.append(super().wait_s(size))
            return 0.0

    pace, data = Hasty(BLOCK, clock), os.urandom(3 * BLOCK)
    streams = [
        whole(bench, saved(tmp_path, data, name), pace, session=session)
        for name, session in (("a", "aa" * 16), ("b", "bb" * 16))
    ]
    said: list[Said] = []

    async def send(stream: SealedFile) -> None:
        async with accepted(bench, store, tcp()) as connection:
            said.append(await given(connection, stream))
            connection.close()

    async with anyio.create_task_group() as group:
        for stream in streams:
            group.start_soon(send, stream)
    assert [one.status for one in said] == [200, 200]
    sent = sum(stream.sent for stream in streams)
    assert pace._free_at - clock.now == pytest.approx(sent / BLOCK)
    last = max(waited)
    assert 6 - 2 * 0.125 < last < sent / BLOCK, "the frame before the last one is what the last one waits for"


async def test_two_transfers_over_different_models_run_at_once(
    bench: Bench, store: ReplicaStore, tmp_path: Path
) -> None:
    """Each has its own thread: neither waits for the end of the other."""
    data = os.urandom(2 * BLOCK)
    pieces = bench.pieces(data, model="slow")
    async with accepted(bench, store, tcp()) as slow:
        await anyio.to_thread.run_sync(slow.sendall, b"".join(pieces[:2]))
        await bench.until(lambda: written(store) == BLOCK)
        async with accepted(bench, store, tcp()) as fast:
            assert (await given(fast, whole(bench, saved(tmp_path, data), model="fast"))).status == 200
            fast.close()
        await anyio.to_thread.run_sync(slow.sendall, b"".join(pieces[2:]))
        assert b" 200 " in await anyio.to_thread.run_sync(head_of, slow)
        slow.close()
    assert all(store.find(model, bench.session) for model in ("slow", "fast"))


async def test_more_transfers_at_once_than_there_are_common_threads(bench: Bench, store: ReplicaStore) -> None:
    """Those that wait for their senders keep no thread from anybody else."""
    async with accepted(bench, store, tcp()) as first:
        waiting = [tcp() for _ in range(60)]
        tasks = [asyncio.create_task(Receiver(bench, store).serve(other)) for _, other in waiting]
        for one, _ in waiting:
            await anyio.to_thread.run_sync(head_of, one)
        stream = b"".join(bench.pieces(b"small"))
        await anyio.to_thread.run_sync(first.sendall, stream)
        assert b" 200 " in await anyio.to_thread.run_sync(head_of, first)
        first.close()
        for one, _ in waiting:
            one.close()
        await asyncio.gather(*tasks)


async def test_a_delta_whose_base_is_not_here_asks_for_the_whole(
    bench: Bench, store: ReplicaStore, ends: tuple[socket.socket, socket.socket], tmp_path: Path
) -> None:
    data = os.urandom(2 * BLOCK)
    path = saved(tmp_path, data)
    header = bench.header(data, base="0" * 64)
    async with accepted(bench, store, ends) as connection:
        stream = sealed_delta(path, bench.key, header, delta_blocks(path, (), saved(tmp_path, data, "base"), ()))
        said = await given(connection, stream)
        connection.close()
    assert (said.status, code(said)) == (409, BaseMissing.code)


@pytest.mark.parametrize("damage", ["flip", "key", "noise", "zeros"])
async def test_what_does_not_open_is_refused_and_leaves_nothing(
    bench: Bench, store: ReplicaStore, ends: tuple[socket.socket, socket.socket], damage: str
) -> None:
    data = os.urandom(3 * BLOCK)
    stream = bytearray(b"".join(bench.pieces(data, bytes(32) if damage == "key" else bench.key)))
    if damage == "flip":
        stream[len(stream) // 2] ^= 1
    elif damage in ("noise", "zeros"):
        stream = bytearray(os.urandom(len(stream)) if damage == "noise" else len(stream))
        stream[0] |= 0x80 * (damage == "noise")

    def send(connection: socket.socket) -> bytes:
        connection.sendall(stream)
        return head_of(connection)

    async with accepted(bench, store, ends) as connection:
        assert b" 422 " in await anyio.to_thread.run_sync(send, connection)
        connection.close()
    assert left(store) == []
    assert store.used == 0
