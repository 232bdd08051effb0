"""Those who look at the mesh: one view for all, nothing followed while nobody looks, and nobody holds anybody up."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from viiwork_core.mesh.member import Member
from viiwork_core.observe.events import Event, EventLog, Kept
from viiwork_core.testing.fake_clock import FakeClock
from viiwork_core.web import mesh_stream
from viiwork_core.web.viewers import BEHIND, MAX_VIEWERS, Viewer, Viewers

BACK = Member(node="back", node_id="run-1", host="127.0.0.2", api_port=81)
SCOPE = {"type": "http", "method": "GET", "path": "/v1/mesh/stream", "headers": []}


class Followers:
    """Members that say what a test lets them say."""

    def __init__(self) -> None:
        self.runs = 0
        self.before: list[Kept] = []
        self.tell: Callable[[Member, Event], None] | None = None

    def past(self) -> list[tuple[Member, Kept]]:
        return [(BACK, kept) for kept in self.before]

    async def run(self, tell: Callable[[Member, Event], None]) -> None:
        self.runs += 1
        self.tell = tell
        try:
            await asyncio.Event().wait()
        finally:
            self.tell = None


class Scene:
    """A node with a mesh."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.log = EventLog(self.clock, history=100)
        self.followers = Followers()
        self.cluster: Any = {"members": ["here"]}
        self.made = 0
        self.work: list[asyncio.Task[None]] = []
        self.viewers = Viewers(
            self.log,
            self.followers,
            node="here",
            node_id="run-0",
            snapshots={"cluster": self._snapshot},
            refresh=self._refresh,
            spawn=self._spawn,
            look_s=0.005,
        )

    def _snapshot(self) -> Any:
        self.made += 1
        if isinstance(self.cluster, Exception):
            raise self.cluster
        return self.cluster

    async def _refresh(self) -> None:
        return

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self.work.append(asyncio.ensure_future(work))

    async def followed(self) -> Callable[[Member, Event], None]:
        async with asyncio.timeout(5):
            while self.followers.tell is None:  # noqa: ASYNC110  # a turn of the loop each
                await asyncio.sleep(0)
        return self.followers.tell

    def following(self) -> bool:
        return self.followers.tell is not None

    async def over(self) -> None:
        """Wait until nothing runs any more."""
        await asyncio.wait_for(asyncio.gather(*self.work, return_exceptions=True), 5)


def read(frames: list[bytes]) -> list[tuple[str, Any]]:
    found = []
    for frame in frames:
        name, data, *rest = frame.decode().split("\n")
        assert rest == ["", ""]
        found.append((name.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


async def batch(viewer: Viewer) -> list[tuple[str, Any]]:
    return read(await asyncio.wait_for(viewer.batch(), 5))


def test_nothing_is_followed_while_nobody_looks() -> None:
    async def scene() -> None:
        one = Scene()
        assert (one.followers.runs, one.made) == (0, 0)
        first = one.viewers.join()
        second = one.viewers.join()
        await one.followed()
        one.viewers.leave(first)
        assert one.following()
        one.viewers.leave(second)
        await one.over()
        assert one.followers.runs == 1
        assert not one.following()
        made = one.made
        one.log.emit("system", "unseen")
        await asyncio.sleep(0.02)
        assert one.made == made
        one.viewers.join()
        await one.followed()
        assert one.followers.runs == 2
        one.log.close()
        await one.over()

    asyncio.run(scene())


def test_each_event_says_whose_it_is() -> None:
    async def scene() -> None:
        one = Scene()
        viewer = one.viewers.join()
        tell = await one.followed()
        one.log.emit("system", "mine")
        tell(BACK, Event(7, "request", "m → m/0", "r", n=3))
        assert await batch(viewer) == [
            (
                "activity",
                {
                    "t": 1_800_000_000,
                    "type": "system",
                    "message": "mine",
                    "n": 1,
                    "node_id": "run-0",
                    "hostname": "here",
                    "addr": "",
                },
            ),
            (
                "activity",
                {
                    "t": 7,
                    "type": "request",
                    "message": "m → m/0",
                    "rid": "r",
                    "n": 3,
                    "node_id": "run-1",
                    "hostname": "back",
                    "addr": "127.0.0.2:81",
                },
            ),
        ]
        one.viewers.leave(viewer)
        await one.over()

    asyncio.run(scene())


def test_who_comes_is_told_the_past_of_all_once() -> None:
    async def scene() -> None:
        one = Scene()
        first = one.viewers.join()
        one.log.emit("system", "before")
        one.clock.advance(1)
        one.followers.before = [Kept(1, one.clock.monotonic(), Event(5, "system", "there", n=1)).replayed()]
        late = one.viewers.join()
        frames = read(late.past)
        assert frames[0] == ("cluster", {"members": ["here"]})
        assert [(data["hostname"], data["message"], data["replay"]) for _, data in frames[1:]] == [
            ("here", "before", True),
            ("back", "there", True),
        ]
        one.log.emit("system", "after")
        assert [data["message"] for _, data in await batch(late)] == ["after"]
        assert [data["message"] for _, data in await batch(first)] == ["before", "after"]
        one.log.close()
        await one.over()

    asyncio.run(scene())


def test_a_snapshot_is_told_when_it_has_changed_and_not_before() -> None:
    async def scene() -> None:
        one = Scene()
        viewer = one.viewers.join()
        made = one.made
        async with asyncio.timeout(5):
            while one.made < made + 3:  # noqa: ASYNC110  # the looks themselves are counted
                await asyncio.sleep(0.005)
        one.cluster = {"members": ["here", "back"]}
        assert await batch(viewer) == [("cluster", one.cluster)]
        assert read(one.viewers.join().past)[0] == ("cluster", one.cluster)
        one.log.close()
        await one.over()

    asyncio.run(scene())


def test_a_slow_viewer_is_dropped_and_the_others_go_on() -> None:
    async def scene() -> None:
        one = Scene()
        slow, quick = one.viewers.join(), one.viewers.join()
        for number in range(BEHIND):
            one.log.emit("system", str(number))
        assert len(await batch(quick)) == BEHIND
        one.log.emit("system", "one too many")
        assert slow.dropped.is_set()
        assert [data["message"] for _, data in await batch(quick)] == ["one too many"]
        one.viewers.leave(slow)
        assert not quick.dropped.is_set()
        one.viewers.leave(quick)
        await one.over()

    asyncio.run(scene())


def test_the_last_that_is_dropped_ends_it_all() -> None:
    async def scene() -> None:
        one = Scene()
        viewer = one.viewers.join()
        await one.followed()
        for number in range(BEHIND + 1):
            one.log.emit("system", str(number))
        assert viewer.dropped.is_set()
        await one.over()
        assert one.followers.tell is None

    asyncio.run(scene())


def test_the_number_of_viewers_is_bounded() -> None:
    async def scene() -> None:
        one = Scene()
        found = [one.viewers.join() for _ in range(MAX_VIEWERS + 1)]
        assert [viewer.dropped.is_set() for viewer in found] == [True] + [False] * MAX_VIEWERS
        await one.followed()
        one.log.close()
        await one.over()
        assert one.followers.runs == 1

    asyncio.run(scene())


def test_viewers_end_with_the_log_and_none_comes_after_it() -> None:
    async def scene() -> None:
        one = Scene()
        viewer = one.viewers.join()
        one.log.emit("system", "stops")
        one.log.close()
        assert [data["message"] for _, data in await batch(viewer)] == ["stops"]
        assert await viewer.batch() == []
        assert not viewer.dropped.is_set()
        await one.over()
        assert await one.viewers.join().batch() == []
        await one.over()

    asyncio.run(scene())


def test_after_a_defect_viewers_notice_and_come_again() -> None:
    async def scene() -> None:
        one = Scene()
        viewer = one.viewers.join()
        one.cluster = ZeroDivisionError("a defect")
        await asyncio.wait_for(viewer.dropped.wait(), 5)
        (failed,) = await asyncio.gather(*one.work, return_exceptions=True)
        assert isinstance(failed, ExceptionGroup)
        one.cluster = {}
        await asyncio.sleep(0)
        assert read(one.viewers.join().past)[0] == ("cluster", {})
        await one.followed()
        one.log.close()

    asyncio.run(scene())


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_the_stream_says_where_the_past_ends(method: str) -> None:
    sent: list[Any] = []

    async def scene() -> None:
        one = Scene()
        one.log.emit("system", "before")

        async def receive() -> dict[str, Any]:
            if len(sent) < 2:
                await asyncio.Event().wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)
            if method == "GET" and len(sent) == 2:
                one.log.close()

        await asyncio.wait_for(mesh_stream.stream(one.viewers, {**SCOPE, "method": method}, receive, send), 5)
        await one.over()
        assert one.followers.runs == (1 if method == "GET" else 0)

    asyncio.run(scene())
    body = sent[1]["body"]
    if method == "HEAD":
        assert body == b""
        return
    assert body.startswith(b": mesh\n\nevent: cluster\ndata: ")
    assert b'"replay":true' in body
    assert body.endswith(b"\n\n: live\n\n")
