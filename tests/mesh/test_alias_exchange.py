"""Fetching aliases from members, against real servers: only when there is something new, and never too much."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from viiwork_core.mesh.alias_book import AliasBook, alias_store
from viiwork_core.mesh.alias_table import ALIASES, AliasTable, AliasWrite
from viiwork_core.mesh.capacity import PeerView
from viiwork_core.mesh.links import Links
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.report import CapacityReport
from viiwork_core.mesh.table_exchange import AT_ONCE, LONGEST_RETRY_S, RETRY_S, TableExchange
from viiwork_core.testing.fake_clock import FakeClock

ONE = AliasTable({"a": (AliasWrite(1, "there", target="m"),)})
TWO = ONE.written("b", AliasWrite(1, "there", target="m"))


class Peer:
    """A member's API with a table."""

    def __init__(self) -> None:
        self.table = ONE
        self.asked: list[str] = []
        self.answer: Callable[[str], bytes] | None = None
        self.ready = asyncio.Event()
        self.ready.set()
        self.port = 0

    async def handle(self, request: web.BaseRequest) -> web.Response:
        after = request.query.get("after", "")
        self.asked.append(after)
        await self.ready.wait()
        return web.Response(body=self.answer(after) if self.answer else ALIASES.encode_page(self.table, after))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        runner = web.ServerRunner(web.Server(self.handle), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.port = runner.addresses[0][1]
        try:
            yield
        finally:
            await runner.cleanup()

    def view(self, digest: str | None, node: str = "there") -> PeerView:
        member = Member(node=node, node_id=f"{node}-1", host="127.0.0.1", api_port=self.port)
        aliases = digest or msgspec.UNSET
        report = CapacityReport(node=node, node_id=member.node_id, ver="1", aliases=aliases)
        return PeerView(member, report, 0.0, 1.0)


class Scene:
    """A book, a peer, and the exchange between them."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.peer = FakeClock(), Peer()
        self.book = AliasBook(
            alias_store(folder),
            node="here",
            clock=self.clock,
            known=lambda _: False,
            served=lambda _: True,
            tell=lambda _: None,
        )
        self.work: set[asyncio.Task[None]] = set()
        self.exchange: TableExchange[AliasWrite]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.work.add(asyncio.ensure_future(work))

    async def heard(self, digest: str | None, node: str = "there") -> int:
        """A report comes, and what follows ends. How many pages were asked for."""
        before = len(self.peer.asked)
        self.exchange.heard(self.peer.view(digest, node))
        await asyncio.gather(*self.work)
        self.work.clear()
        return len(self.peer.asked) - before

    def play(self, scene: Callable[[], Coroutine[Any, Any, None]]) -> None:
        async def run() -> None:
            async with asyncio.timeout(30), self.peer.serving(), Links(node="here", signer=None) as links:
                await self.book.open()
                self.exchange = TableExchange(
                    self.book,
                    links,
                    path="/v1/aliases",
                    digest_in=lambda report: report.aliases,
                    clock=self.clock,
                    spawn=self._spawn,
                )
                await scene()

        asyncio.run(run())


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_table_is_fetched_once(scene: Scene) -> None:
    async def play() -> None:
        assert await scene.heard(AliasTable().digest) == 0
        assert await scene.heard(None) == 0
        assert await scene.heard(ONE.digest) == 1
        assert scene.book.table == ONE
        assert await scene.heard(ONE.digest) == 0
        scene.peer.table = TWO
        assert await scene.heard(TWO.digest) == 1
        # Others that lag behind, and one that has the same.
        for digest in (ONE.digest, TWO.digest, AliasTable().digest):
            assert await scene.heard(digest, "another") == 0

    scene.play(play)


def test_a_table_that_this_node_is_ahead_of_is_fetched_once(scene: Scene) -> None:
    async def play() -> None:
        await scene.book.set("mine", "m")
        assert await scene.heard(ONE.digest) == 1
        assert set(scene.book.table.live) == {"a", "mine"}
        assert await scene.heard(ONE.digest) == 0

    scene.play(play)


def test_many_members_with_the_same_table_are_not_all_asked(scene: Scene) -> None:
    async def play() -> None:
        scene.peer.ready.clear()
        for number in range(50):
            scene.exchange.heard(scene.peer.view(ONE.digest, f"n{number}"))
        assert len(scene.work) == 1
        for number in range(50):
            scene.exchange.heard(scene.peer.view(f"{number:032x}", f"n{number}"))
        assert len(scene.work) == AT_ONCE
        scene.peer.ready.set()
        await asyncio.gather(*scene.work)
        assert scene.book.table == ONE

    scene.play(play)


def test_pages_are_followed_to_the_end(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("viiwork_core.mesh.table_text.PAGE_BYTES", 1)
    scene.peer.table = AliasTable({name: (AliasWrite(1, "there", target="m"),) for name in "abcde"})

    async def play() -> None:
        assert await scene.heard(scene.peer.table.digest) == 5
        assert scene.peer.asked == ["", "a", "b", "c", "d"]
        assert scene.book.table == scene.peer.table

    scene.play(play)


def test_a_table_that_changes_meanwhile_is_fetched_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("viiwork_core.mesh.table_text.PAGE_BYTES", 1)
    before, after = TWO, TWO.written("a", AliasWrite(2, "there", target="n"))
    scene.peer.answer = lambda name: ALIASES.encode_page(after if name else before, name)

    async def play() -> None:
        assert await scene.heard(before.digest) == 2
        assert scene.book.table == before
        assert not scene.book.contains(after.digest)
        assert await scene.heard(before.digest) == 0
        scene.peer.answer = None
        scene.peer.table = after
        assert await scene.heard(after.digest) == 2
        assert scene.book.table == after

    scene.play(play)


def _page(**more: Any) -> bytes:
    return msgspec.json.encode({"v": 1, "digest": "0" * 32, "aliases": {}, **more})


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: b"nonsense",
        lambda _: b"[" * 100_000,
        lambda _: _page(v=2),
        lambda _: _page(digest="x"),
        lambda _: _page(next="a"),
        lambda _: _page(next="../x"),
        lambda after: _page(next=f"n{len(after):03}" if not after else f"n{int(after[1:]) + 1:03}"),
        lambda _: b" " * ((1 << 20) + 1),
    ],
)
def test_a_member_that_talks_nonsense_is_asked_ever_more_seldom(scene: Scene, answer: Callable[[str], bytes]) -> None:
    scene.peer.answer = answer

    async def play() -> None:
        with capture_logs() as logs:
            assert 1 <= await scene.heard("1" * 32) <= 128
            for wait in (RETRY_S, RETRY_S * 2, RETRY_S * 4):
                scene.clock.advance(wait - 0.1)
                assert await scene.heard("1" * 32) == 0
                scene.clock.advance(0.1)
                assert await scene.heard("1" * 32) >= 1
        assert [log["event"] for log in logs] == ["aliases could not be fetched"]
        scene.clock.advance(LONGEST_RETRY_S)
        scene.peer.answer = None
        assert await scene.heard(ONE.digest) == 1
        assert scene.book.table == ONE

    scene.play(play)


def test_what_cannot_be_is_left_out_and_not_fetched_again(scene: Scene) -> None:
    good = {"ver": 1, "by": "there", "target": "m"}
    found = {"a": good, "bad": {**good, "ver": 1 << 54}, "worse": {"ver": 1, "by": "there"}}
    scene.peer.answer = lambda _: _page(aliases=found)

    async def play() -> None:
        with capture_logs() as logs:
            assert await scene.heard("0" * 32) == 1
            assert await scene.heard("0" * 32) == 0
            assert await scene.heard("1" * 32) == 1
        assert scene.book.table == ONE
        ignored = [log["reason"][:6] for log in logs if log["event"] == "alias ignored"]
        assert ignored == ["'bad':", "'worse"]

    scene.play(play)


def test_a_member_that_is_gone_is_a_failure_of_that_member_only(scene: Scene) -> None:
    async def play() -> None:
        view = scene.peer.view("1" * 32, "gone")
        closed = msgspec.structs.replace(view.report)
        member = Member(node="gone", node_id="gone-1", host="127.0.0.1", api_port=1)
        scene.exchange.heard(PeerView(member, closed, 0.0, 1.0))
        await asyncio.gather(*scene.work)
        scene.work.clear()
        assert await scene.heard("1" * 32, "gone") == 0
        assert await scene.heard(ONE.digest) == 1
        assert scene.book.table == ONE

    scene.play(play)
