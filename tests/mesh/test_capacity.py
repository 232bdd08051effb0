"""Capacity polls, against real servers: at once on join, old values kept, the departed forgotten."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from viiwork_core.clock import SystemClock
from viiwork_core.mesh.capacity import RTT_ALPHA, CapacityPolls, PeerView
from viiwork_core.mesh.links import Links
from viiwork_core.mesh.membership import Member
from viiwork_core.mesh.report import CapacityReport, encode_report

ONCE = 3600.0
OFTEN = 0.02


class Twin:
    """A membership in memory, whose members a test sets."""

    address = "127.0.0.1:7946"

    def __init__(self, *members: Member) -> None:
        self.now = members
        self.bell = asyncio.Event()

    def set(self, *members: Member) -> None:
        self.now = members
        self.bell.set()

    async def join(self, addresses: Sequence[str]) -> int:
        return 0

    def members(self) -> tuple[Member, ...]:
        return self.now

    async def changes(self) -> AsyncGenerator[tuple[Member, ...], None]:
        while True:
            yield self.now
            await self.bell.wait()
            self.bell.clear()

    async def leave(self) -> None:
        self.set()


class Seen:
    """What the polls told, in order: views, and names of the forgotten."""

    def __init__(self) -> None:
        self.all: list[PeerView | str] = []
        self.news = asyncio.Event()

    def tell(self, item: PeerView | str) -> None:
        self.all.append(item)
        self.news.set()

    async def until(self, wanted: Callable[[list[PeerView | str]], bool]) -> None:
        async with asyncio.timeout(20):
            while not wanted(self.all):
                self.news.clear()
                await self.news.wait()

    @property
    def views(self) -> list[PeerView]:
        return [item for item in self.all if isinstance(item, PeerView)]


class Peer:
    """A member's API, whose answers a test sets."""

    def __init__(self, node: str = "a", node_id: str = "1") -> None:
        self.member = Member(node=node, node_id=node_id, host="127.0.0.1", api_port=1)
        self.answer: str | None = None
        self.asked = self.at_once = 0
        self.ready = asyncio.Event()
        self.ready.set()

    async def handle(self, request: web.BaseRequest) -> web.Response:
        self.asked += 1
        self.at_once += 1
        try:
            await self.ready.wait()
        finally:
            self.at_once -= 1
        report = CapacityReport(node=self.member.node, node_id=self.member.node_id, ver="0.1.0")
        return web.Response(body=self.answer.encode() if self.answer else encode_report(report))

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Member]:
        runner = web.ServerRunner(web.Server(self.handle), shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        self.member = dataclasses.replace(self.member, api_port=runner.addresses[0][1])
        try:
            yield self.member
        finally:
            await runner.cleanup()


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110  # what is waited for has no event of its own
            await asyncio.sleep(0.005)


@asynccontextmanager
async def polling(twin: Twin, interval_s: float) -> AsyncIterator[Seen]:
    seen = Seen()
    async with Links(node="me", signer=None) as links:
        polls = CapacityPolls(
            twin, links, clock=SystemClock(), publish=seen.tell, forget=seen.tell, interval_s=interval_s
        )
        task = asyncio.create_task(polls.run())
        try:
            yield seen
        finally:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task


def test_a_member_is_asked_at_once_and_again() -> None:
    async def run() -> None:
        peer, before = Peer(), SystemClock().monotonic()
        async with peer.serving() as member, polling(Twin(member), OFTEN) as seen:
            await seen.until(lambda told: len(told) >= 3)
            times = [view.asked_at for view in seen.views]
            assert before <= times[0] < times[1] < times[2] <= SystemClock().monotonic()
            assert all(view.member == member and view.report.node == "a" for view in seen.views)

    asyncio.run(run())


def test_a_member_that_joins_later_is_asked_at_once() -> None:
    async def run() -> None:
        twin, one, two = Twin(), Peer("a"), Peer("b")
        async with one.serving() as a, two.serving() as b, polling(twin, ONCE) as seen:
            twin.set(a)
            await seen.until(lambda told: len(told) == 1)
            twin.set(a, b)
            await seen.until(lambda told: len(told) == 2)
            assert [view.member.node for view in seen.views] == ["a", "b"]
            assert one.asked == 1

    asyncio.run(run())


def test_a_member_that_does_not_answer_holds_up_no_other() -> None:
    async def run() -> None:
        slow, quick = Peer("a"), Peer("b")
        slow.ready.clear()
        async with slow.serving() as a, quick.serving() as b, polling(Twin(a, b), OFTEN) as seen:
            await seen.until(lambda told: len(told) >= 5 and slow.asked >= 3)
            assert {view.member.node for view in seen.views} == {"b"}

    with capture_logs() as logs:
        asyncio.run(run())
    assert [log["event"] for log in logs] == ["no capacity report"]


def test_the_round_trip_is_a_moving_average() -> None:
    async def run() -> None:
        peer = Peer()
        async with peer.serving() as member, polling(Twin(member), OFTEN) as seen:
            await seen.until(lambda told: len(told) >= 2)
            first, second = (view.rtt_ms for view in seen.views[:2])
            measured = (second - first) / RTT_ALPHA + first
            assert first > 0
            assert measured > 0

    asyncio.run(run())


def test_a_failure_keeps_the_old_value_and_is_logged_until_it_recovers() -> None:
    async def run() -> None:
        peer = Peer()
        async with peer.serving() as member, polling(Twin(member), OFTEN) as seen:
            await seen.until(lambda told: len(told) >= 1)
            peer.answer = '{"node": "a", "node_id": "another run", "ver": "1", "models": []}'
            asked, told = peer.asked, len(seen.all)
            await eventually(lambda: peer.asked >= asked + 4)
            assert len(seen.all) <= told + 1  # one answer may have been on its way
            assert "a" not in seen.all
            peer.answer, told = None, len(seen.all)
            await seen.until(lambda now: len(now) > told)

    with capture_logs() as logs:
        asyncio.run(run())
    assert [log["event"] for log in logs] == ["no capacity report", "capacity is reported again"]


def test_who_leaves_is_forgotten_and_asked_no_more() -> None:
    async def run() -> None:
        peer = Peer()
        async with peer.serving() as member:
            twin = Twin(member)
            async with polling(twin, OFTEN) as seen:
                await seen.until(lambda told: len(told) >= 1)
                peer.ready.clear()
                asked = peer.asked
                await eventually(lambda: peer.asked > asked)
                twin.set()
                await seen.until(lambda told: told[-1] == "a")
                peer.ready.set()
                await eventually(lambda: peer.at_once == 0)
                assert seen.all[-1] == "a"

    asyncio.run(run())


def test_a_restart_forgets_a_node_only_with_its_last_process() -> None:
    async def run() -> None:
        old, new = Peer("a", "1"), Peer("a", "2")
        async with old.serving() as one, new.serving() as two:
            twin = Twin(one)
            async with polling(twin, ONCE) as seen:
                await seen.until(lambda told: len(told) == 1)
                twin.set(one, two)
                await seen.until(lambda told: len(told) == 2)
                twin.set(two)
                await eventually(lambda: not twin.bell.is_set())
                assert "a" not in seen.all
                twin.set()
                await seen.until(lambda told: told[-1] == "a")
                assert [view.member.node_id for view in seen.views] == ["1", "2"]

    asyncio.run(run())


def test_a_new_address_of_a_member_is_used() -> None:
    async def run() -> None:
        peer = Peer()
        async with peer.serving() as member:
            nowhere = dataclasses.replace(member, host="127.0.0.99")
            twin = Twin(nowhere)
            async with polling(twin, OFTEN) as seen:
                await eventually(lambda: bool(failures))
                twin.set(member)
                await seen.until(lambda told: len(told) >= 1)
                assert seen.views[0].member == member

    with capture_logs() as failures:
        asyncio.run(run())
    assert failures[0]["event"] == "no capacity report"
