"""What a member may send in place of a capacity report: nothing of it is believed, and nothing breaks."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from structlog.testing import capture_logs

from viiwork_core.clock import SystemClock
from viiwork_core.mesh.capacity import CapacityPolls, PeerView
from viiwork_core.mesh.links import Links
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.membership import Membership
from viiwork_core.mesh.report import MAX_BYTES

MODEL = {"name": "m", "engine": "e", "slots": 4, "busy": 1, "queued": 0, "backends": 2, "healthy_backends": 1}
HTML = "<img src=x onerror=alert(1)>"
WRONG: dict[str, Any] = {
    "negative": {"slots": -1},
    "negative load": {"busy": -1},
    "more than there is": {"busy": 5},
    "huge": {"slots": 10**30},
    "beyond any float": {"ctx": 10**400},
    "half a slot": {"slots": 1.5},
    "text for a number": {"slots": "4"},
    "truth for a number": {"slots": True},
    "nothing for a number": {"slots": None},
    "a list for a name": {"name": ["m"]},
    "a number for a name": {"name": 7},
    "a line break in a name": {"name": "m\r\nSet-Cookie: a=b"},
    "markup for an engine": {"engine": HTML},
    "markup for a hash": {"heads": [{"link": HTML, "session": "0" * 32, "tokens": 1, "turn": 1}]},
}


def answer(status: str, body: bytes, *headers: str) -> bytes:
    fields = ("Content-Type: application/json", f"Content-Length: {len(body)}", "Connection: close", *headers)
    return "\r\n".join((f"HTTP/1.1 {status}", *fields, "", "")).encode() + body


def report(**changed: object) -> bytes:
    return json.dumps({"node": "a", "node_id": "1", "ver": "1", "models": [MODEL], **changed}).encode()


class Peer:
    """A member that sends to each question the same bytes, whatever they are."""

    def __init__(self, said: bytes) -> None:
        self.said = said
        self.asked = 0
        self.broken = 0
        """Answers that were not taken to their end."""

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.asked += 1
        try:
            await reader.readuntil(b"\r\n\r\n")
            for at in range(0, len(self.said), 1 << 16):
                writer.write(self.said[at : at + (1 << 16)])
                await writer.drain()
        except ConnectionError:
            self.broken += 1
        finally:
            writer.close()

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[int]:
        async with await asyncio.start_server(self.handle, "127.0.0.1", 0) as server:
            yield server.sockets[0].getsockname()[1]


class One(Membership):
    """A mesh of one other member."""

    def __init__(self, member: Member) -> None:
        self._member = member

    async def changes(self) -> AsyncGenerator[tuple[Member, ...], None]:
        yield (self._member,)
        await asyncio.Event().wait()


class Told:
    """What the polls made of it."""

    def __init__(self) -> None:
        self.views: list[PeerView] = []
        self.silences = 0

    def silent(self, member: Member, asked_at: float) -> None:
        self.silences += 1


@asynccontextmanager
async def polled(port: int, interval_s: float = 5.0) -> AsyncIterator[Told]:
    told, member = Told(), Member(node="a", node_id="1", host="127.0.0.1", api_port=port)
    async with Links(node="me", signer=None) as links:
        polls = CapacityPolls(
            One(member),
            links,
            clock=SystemClock(),
            publish=told.views.append,
            forget=lambda _: None,
            silent=told.silent,
            interval_s=interval_s,
        )
        task = asyncio.create_task(polls.run())
        try:
            yield told
        finally:
            task.cancel()
            await asyncio.wait([task])


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # what is waited for has no event of its own
            await asyncio.sleep(0.01)


def refused(peer: Peer) -> str:
    """Poll a peer until it counts as silent; what the log said."""

    async def run() -> None:
        async with peer.serving() as port, polled(port) as told:
            await eventually(lambda: told.silences >= 1)
            assert told.views == []

    with capture_logs() as logs:
        asyncio.run(run())
    assert [line["event"] for line in logs] == ["no capacity report"]
    reason: str = logs[0]["reason"]
    assert len(reason) < 500
    assert reason.isprintable()
    return reason


@pytest.mark.parametrize("changed", WRONG.values(), ids=WRONG)
def test_figures_that_cannot_be_are_not_believed(changed: dict[str, object]) -> None:
    assert "malformed" in refused(Peer(answer("200 OK", report(models=[{**MODEL, **changed}]))))


@pytest.mark.parametrize("changed", [{"node": "b"}, {"node_id": "2"}, {"node": HTML}])
def test_nobody_speaks_for_another(changed: dict[str, str]) -> None:
    assert "another node" in refused(Peer(answer("200 OK", report(**changed))))


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"<html>", b"\xff\xfe", b"{" * 100_000, b'{"node": "a"'])
def test_what_is_no_report_is_none(body: bytes) -> None:
    assert "malformed" in refused(Peer(answer("200 OK", body)))


def test_ten_megabytes_are_not_read() -> None:
    """And when it comes to its senses it is believed again."""
    peer = Peer(answer("200 OK", report() + b" " * 10_000_000))

    async def run() -> None:
        async with peer.serving() as port, polled(port, interval_s=0.5) as told:
            # Broken off: the rest was refused, not taken in and thrown away.
            await eventually(lambda: told.silences >= 1 and peer.broken >= 1)
            assert told.views == []
            peer.said = answer("200 OK", report())
            await eventually(lambda: bool(told.views))

    with capture_logs() as logs:
        asyncio.run(run())
    assert f"more than {MAX_BYTES} bytes" in logs[0]["reason"]


@pytest.mark.parametrize(
    "said", [b"", b"\r\n\r\n", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"]
)
def test_what_is_no_answer_is_none(said: bytes) -> None:
    peer = Peer(said)
    assert "127.0.0.1" in refused(peer)


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary Redirect", "308 Permanent Redirect"])
def test_nobody_is_sent_elsewhere(status: str) -> None:
    async def run() -> None:
        elsewhere = Peer(answer("200 OK", report()))
        async with elsewhere.serving() as other:
            peer = Peer(answer(status, b"", f"Location: http://127.0.0.1:{other}/v1/capacity"))
            async with peer.serving() as port, polled(port) as told:
                await eventually(lambda: told.silences >= 1)
                assert (told.views, elsewhere.asked) == ([], 0)

    with capture_logs() as logs:
        asyncio.run(run())
    assert f"answered {status[:3]}" in logs[0]["reason"]


def test_markup_in_a_model_s_name_is_text() -> None:
    """It is a name like others: whoever makes a page of it writes it as text."""

    async def run() -> None:
        peer = Peer(answer("200 OK", report(models=[{**MODEL, "name": HTML}])))
        async with peer.serving() as port, polled(port) as told:
            await eventually(lambda: bool(told.views))
            assert [model.name for model in told.views[0].report.models] == [HTML]

    with capture_logs() as logs:
        asyncio.run(run())
    assert logs == []
