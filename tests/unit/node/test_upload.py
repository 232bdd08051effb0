"""An upload to a member that accepts, refuses, breaks off or is no such member, over real connections."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing, contextmanager
from pathlib import Path

import psutil
import pytest
from blake3 import blake3

from viiwork_core.errors import BackendFailed, BaseMissing, CacheRefused, ResumeFrom
from viiwork_core.kvshare import upgraded
from viiwork_core.kvshare.sealing import Opener, TransferHeader
from viiwork_core.kvshare.streams import SealedFile, sealed_file
from viiwork_core.kvshare.upgraded import Said
from viiwork_core.mesh.links import Links
from viiwork_core.mesh.member import Member
from viiwork_core.node.upload import _refusal, upload

KEY = bytes(range(32))
LARGE = 64 << 20
SWITCH = b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: viiwork-replica\r\n\r\n"

Serve = Callable[[socket.socket], object]


@pytest.fixture(autouse=True)
def _nothing_is_left_open() -> Iterator[None]:
    before = psutil.Process().num_fds()
    yield
    assert psutil.Process().num_fds() <= before


def body(code: str) -> bytes:
    return json.dumps({"error": {"message": "no", "code": code}}).encode()


def whole(status: int, content: bytes, *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 %d X" % status, b"content-length: %d" % len(content), *headers]
    return b"\r\n".join((*lines, b"", content))


def test_what_a_refusal_asks_for() -> None:
    assert type(_refusal("b answered 409", Said(409, "", body("base_missing")))) is BaseMissing
    part = _refusal("b answered 409", Said(409, "1048576", body("resume")))
    assert isinstance(part, ResumeFrom)
    assert part.offset == 1 << 20


@pytest.mark.parametrize(
    ("said", "offset"),
    [
        (b"", ""),
        (b"\xff", ""),
        (b"[]", ""),
        (b'{"error": "no"}', ""),
        (b'{"error": {}}', ""),
        (b'{"error": ' * 4000, ""),
        (body("cache_refused"), "5"),
        (body("resume"), ""),
        (body("resume"), "-1"),
        (body("resume"), "1" * 17),
        (body("resume"), "5, 6"),
    ],
)
def test_anything_else_is_plainly_a_refusal(said: bytes, offset: str) -> None:
    refusal = _refusal("b answered 422", Said(422, offset, said))
    assert type(refusal) is CacheRefused
    assert refusal.message.startswith("b answered 422: ")


# Members as they may be


def head_of(connection: socket.socket) -> bytes:
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        byte = connection.recv(1)
        assert byte, f"the connection ended after {head!r}"
        head += byte
    return head


def opened(connection: socket.socket) -> bytes:
    """The file of a sealed stream, read to its end."""
    opener, data = Opener(KEY), bytearray()
    while opener.blake3 is None:
        count = connection.recv_into(opener.get_buffer())
        assert count, "the stream was cut short"
        if block := opener.buffer_updated(count):
            data += block
    return bytes(data)


@contextmanager
def member(*serves: Serve) -> Iterator[Member]:
    """One that serves the first connection with the first of these, and so on. Each connection is then closed."""
    failures: list[BaseException] = []

    def run() -> None:
        for serve in serves:
            with server.accept()[0] as connection:
                connection.settimeout(20)
                try:
                    serve(connection)
                except OSError:
                    continue  # the test says what the other end makes of that
                except BaseException as failure:  # noqa: BLE001  # raised where the test ends
                    failures.append(failure)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=run)
        thread.start()
        yield Member("peer", "run-1", "127.0.0.1", server.getsockname()[1])
        thread.join(20)
        assert not thread.is_alive(), "it was asked less often than expected"
    assert failures == []


def sealed(path: Path) -> aclosing[SealedFile]:
    label = {"model": "m", "group": "g", "fingerprint": "f", "session": "5e" * 16, "turn": 1, "tokens": 1}
    header = TransferHeader(length=path.stat().st_size, **label)  # type: ignore[arg-type]  # each has its own type
    return aclosing(sealed_file(path, KEY, header))


def sent(path: Path, to: Member) -> SealedFile:
    """The stream, after an upload that has 20 seconds. It leaves no task behind."""

    async def run() -> SealedFile:
        async with Links(node="me", signer=None) as links, sealed(path) as stream:
            try:
                async with asyncio.timeout(20):
                    await upload(links, to, stream)
            finally:
                assert asyncio.all_tasks() == {asyncio.current_task()}
            return stream

    return asyncio.run(run())


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small"
    path.write_bytes(os.urandom(300_000))
    return path


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(LARGE)
    return path


def test_a_member_that_accepts(small: Path) -> None:
    def serve(connection: socket.socket) -> None:
        head = head_of(connection).lower()
        assert head.startswith(b"put /v1/kv/replicas http/1.1\r\n")
        for line in (b"connection: upgrade", b"upgrade: viiwork-replica", b"x-viiwork-to: run-1"):
            assert b"\r\n" + line + b"\r\n" in head
        connection.sendall(SWITCH)
        assert opened(connection) == small.read_bytes()
        connection.sendall(whole(200, b'{"stored":true}'))

    with member(serve) as to:
        assert sent(small, to).blake3 is not None


def test_a_member_that_cannot_leave_http_gets_a_body(small: Path) -> None:
    got = bytearray()

    def refuse(connection: socket.socket) -> None:
        head_of(connection)
        connection.sendall(whole(501, body("upgrade_unsupported")))
        take(connection)

    def take(connection: socket.socket) -> None:
        """A body in chunks, on the same connection."""
        head = head_of(connection).lower()
        assert b"transfer-encoding: chunked" in head
        assert b"upgrade" not in head
        with connection.makefile("rb") as file:
            while size := int(file.readline(), 16):
                got.extend(file.read(size))
                assert file.readline() == b"\r\n"
        connection.sendall(whole(200, b"{}"))

    with member(refuse) as to:
        assert sent(small, to).sent == len(got)
    opener, content = Opener(KEY), small.read_bytes()
    assert b"".join(bytes(block) for block in opener.feed(got)) == content
    assert opener.finish() == blake3(content).hexdigest()


def test_a_direct_link_that_leads_nowhere_is_gone_around(small: Path) -> None:
    def serve(connection: socket.socket) -> None:
        head_of(connection)
        connection.sendall(SWITCH)
        opened(connection)
        connection.sendall(whole(200, b"{}"))

    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
    with member(serve) as to:
        direct = Member(to.node, to.node_id, to.host, to.api_port, kv_address=address)
        assert sent(small, direct).blake3 is not None


def test_a_direct_link_that_breaks_before_the_first_byte_is_gone_around(small: Path) -> None:
    """What it did not take goes the other way, from the stream's beginning on."""
    got: list[bytes] = []

    def leave(connection: socket.socket) -> None:
        head_of(connection)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.sendall(SWITCH)

    def take(connection: socket.socket) -> None:
        head_of(connection)
        connection.sendall(SWITCH)
        got.append(opened(connection))
        connection.sendall(whole(200, b"{}"))

    with member(leave) as link, member(take) as to:
        direct = Member(to.node, to.node_id, to.host, to.api_port, kv_address=f"{link.host}:{link.api_port}")
        sent(small, direct)
    assert got == [small.read_bytes()]


def test_a_saved_file_that_is_gone_is_not_the_members_fault(small: Path) -> None:
    def serve(connection: socket.socket) -> None:
        head_of(connection)
        small.unlink()
        connection.sendall(SWITCH)
        assert connection.recv(1), "the header"
        while connection.recv(1 << 16):
            pass

    with member(serve) as to, pytest.raises(CacheRefused, match="the saved file cannot be read: No such file") as told:
        sent(small, to)
    assert str(small) not in told.value.message


def test_a_refusal_in_http(small: Path) -> None:
    def serve(connection: socket.socket) -> None:
        head_of(connection)
        connection.sendall(whole(401, body("unproven")))

    with member(serve) as to, pytest.raises(CacheRefused, match="peer answered 401"):
        sent(small, to)


def test_a_refusal_right_behind_the_first_bytes(large: Path) -> None:
    """Twenty times, since it is a race."""

    def serve(connection: socket.socket) -> None:
        head_of(connection)
        connection.sendall(SWITCH)
        assert connection.recv(1, socket.MSG_PEEK)
        connection.sendall(whole(409, body("resume"), b"x-viiwork-offset: 7"))
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(1 << 20):
            pass

    for _ in range(20):
        with member(serve) as to, pytest.raises(ResumeFrom) as refusal:
            sent(large, to)
        assert refusal.value.offset == 7


def leave(connection: socket.socket) -> None:
    head_of(connection)


def switch_and_leave(connection: socket.socket) -> None:
    head_of(connection)
    connection.sendall(SWITCH)


def switch_and_reset(connection: socket.socket) -> None:
    switch_and_leave(connection)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def switch_to_nothing(connection: socket.socket) -> None:
    """An answer 101 that is no upgrade."""
    head_of(connection)
    connection.sendall(b"HTTP/1.1 101 Switching Protocols\r\n\r\n")


def switch_with_a_length(connection: socket.socket) -> None:
    head_of(connection)
    connection.sendall(SWITCH[:-2] + b"content-length: 5\r\n\r\nhello")


def take_half(connection: socket.socket) -> None:
    switch_and_leave(connection)
    left = LARGE // 2
    while left > 0:
        left -= len(connection.recv(1 << 20))


def take_all(connection: socket.socket) -> None:
    switch_and_leave(connection)
    opened(connection)


def answer_nonsense(connection: socket.socket) -> None:
    take_all(connection)
    connection.sendall(b"\x00\xff" * 100)


BROKEN = [
    leave,
    switch_and_leave,
    switch_and_reset,
    switch_to_nothing,
    switch_with_a_length,
    take_half,
    take_all,
    answer_nonsense,
]


@pytest.mark.parametrize("serve", BROKEN, ids=lambda serve: serve.__name__)
def test_a_member_that_breaks_off_has_failed(large: Path, serve: Serve) -> None:
    # The client repeats a request, once, that was not answered at all.
    serves = [serve] * (2 if serve is leave else 1)
    with member(*serves) as to, pytest.raises(BackendFailed):
        sent(large, to)


def test_a_member_that_takes_nothing_has_failed(monkeypatch: pytest.MonkeyPatch, large: Path) -> None:
    monkeypatch.setattr(upgraded, "SILENCE_S", 0.2)
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        switch_and_leave(connection)
        over.wait(20)

    with member(serve) as to:
        with pytest.raises(BackendFailed, match="broke off: the other end has been silent"):
            sent(large, to)
        over.set()


def test_an_upload_that_is_cancelled_while_the_answer_is_awaited(small: Path) -> None:
    took, over = threading.Event(), threading.Event()

    def serve(connection: socket.socket) -> None:
        take_all(connection)
        took.set()
        assert connection.recv(1) == b"", "the sender has closed its end"
        over.set()

    async def run(to: Member) -> None:
        async with Links(node="me", signer=None) as links, sealed(small) as stream, asyncio.timeout(20):
            uploading = asyncio.create_task(upload(links, to, stream))
            await asyncio.to_thread(took.wait, 20)
            uploading.cancel()
            await asyncio.wait([uploading])
            assert uploading.cancelled()

    with member(serve) as to:
        asyncio.run(run(to))
    assert over.is_set()


def test_a_file_that_changes_meanwhile_is_not_taken(small: Path) -> None:
    def serve(connection: socket.socket) -> None:
        head_of(connection)
        with small.open("ab") as file:
            file.write(b"more")
        connection.sendall(SWITCH)
        with closing(connection):
            while connection.recv(1 << 20):
                pass

    with member(serve) as to, pytest.raises(CacheRefused, match="changed while"):
        sent(small, to)
