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
        self.silences: list[tuple[str, float]] = []
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
        self.headers: dict[str, str] = {}
        self.status = 200
        self.known: list[str | None] = []
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
        self.known.append(request.headers.get("If-None-Match"))
        report = CapacityReport(node=self.member.node, node_id=self.member.node_id, ver="0.1.0")
        tag = self.headers.get("ETag")
        if tag is not None and self.known[-1] == tag:
            return web.Response(status=304, headers=self.headers)
        body = self.answer.encode() if self.answer else encode_report(report)
        return web.Response(status=self.status, body=body, headers=self.headers)

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
            twin,
            links,
            clock=SystemClock(),
            publish=seen.tell,
            forget=seen.tell,
            silent=lambda member, asked_at: seen.silences.append((member.node, asked_at)),
            interval_s=interval_s,
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


def test_what_has_not_changed_is_not_sent_again() -> None:
    async def run() -> None:
        peer = Peer()
        peer.headers = {"ETag": '"1"'}
        async with peer.serving() as member, polling(Twin(member), OFTEN) as seen:
            await seen.until(lambda told: len(told) >= 3)
            assert peer.known[:3] == [None, '"1"', '"1"']
            assert len({view.asked_at for view in seen.views}) == len(seen.views), "each is news of its own time"
            assert len({view.report for view in seen.views}) == 1
            peer.headers = {"ETag": '"2"'}
            peer.answer = '{"node": "a", "node_id": "1", "ver": "9", "models": []}'
            await seen.until(lambda told: seen.views[-1].report.ver == "9")
            peer.headers, told = {}, len(seen.all)
            await seen.until(lambda now: len(now) >= told + 2)
            assert peer.known[-1] is None, "what has no name cannot be named"

    asyncio.run(run())


def test_a_304_that_nobody_asked_for_is_no_report() -> None:
    async def run() -> None:
        peer = Peer()
        peer.status = 304
        async with peer.serving() as member, polling(Twin(member), OFTEN) as seen:
            await eventually(lambda: len(seen.silences) >= 2)
            assert seen.all == []

    with capture_logs() as logs:
        asyncio.run(run())
    # A poll may be late besides, on a busy machine.
    assert any("answered 304" in log["reason"] for log in logs) or "TimeoutError" in logs[0]["reason"]


@pytest.mark.parametrize("status", [302, 401, 500])
def test_one_poll_that_fails_is_told_with_its_time(status: int) -> None:
    async def run() -> None:
        peer = Peer()
        peer.headers = {"Location": "http://127.0.0.1:1/v1/capacity"}
        async with peer.serving() as member, polling(Twin(member), OFTEN) as seen:
            await seen.until(lambda told: len(told) >= 1)
            peer.status = status
            await eventually(lambda: bool(seen.silences))
            node, asked_at = seen.silences[0]
            assert node == "a"
            assert asked_at > seen.views[-1].asked_at

    asyncio.run(run())


@pytest.mark.parametrize(("status", "year"), [(200, 2020), (401, 2099)])
def test_a_clock_that_is_far_off_is_told_once_with_the_name(status: int, year: int) -> None:
    async def run() -> None:
        peer = Peer()
        peer.status, peer.headers = status, {"Date": f"Wed, 01 Jan {year} 00:00:00 GMT"}
        async with peer.serving() as member, polling(Twin(member), OFTEN):
            await eventually(lambda: peer.asked >= 3)
            peer.headers, asked = {"Date": "at noon"}, peer.asked
            await eventually(lambda: peer.asked >= asked + 2)
            peer.headers, asked = {}, peer.asked  # the server's own, and true
            await eventually(lambda: peer.asked >= asked + 2)

    with capture_logs() as logs:
        asyncio.run(run())
    lines = [log for log in logs if log["event"] in ("clock skew", "clocks agree again")]
    assert [(line["event"], line["node"]) for line in lines] == [("clock skew", "a"), ("clocks agree again", "a")]
    assert ("behind" if year == 2020 else "ahead of") in lines[0]["reason"]


def test_all_lost_at_once_is_this_machine_s_own_network() -> None:
    async def run() -> None:
        one, two, never = Peer("a"), Peer("b"), Member(node="c", node_id="1", host="127.0.0.1", api_port=1)
        async with one.serving() as a, two.serving() as b, polling(Twin(a, b, never), OFTEN) as seen:
            await seen.until(lambda _: {view.member.node for view in seen.views} == {"a", "b"})
            one.status = 500
            asked = two.asked
            await eventually(lambda: two.asked >= asked + 3 and bool(seen.silences))
            assert isolated() == []
            two.status = 500
            await eventually(isolated)
            one.status = 200
            await eventually(lambda: any(log["event"] == "other nodes answer again" for log in logs))

    def isolated() -> list[object]:
        return [log["nodes"] for log in logs if log["event"] == "all other nodes are out of reach at once"]

    with capture_logs() as logs:
        asyncio.run(run())
    assert isolated() == [["a", "b"]]


def test_of_one_lost_node_nobody_can_say_whose_cable_it_was() -> None:
    async def run() -> None:
        peer = Peer("a")
        async with peer.serving() as member, polling(Twin(member), OFTEN) as seen:
            await seen.until(lambda told: len(told) >= 1)
            peer.status = 500
            await eventually(lambda: len(seen.silences) >= 3)

    with capture_logs() as logs:
        asyncio.run(run())
    assert [log["event"] for log in logs] == ["no capacity report"]
