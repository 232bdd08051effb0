"""The activity stream: it ends when its log does, when its client leaves, and when its client does not read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from viiwork_core.observe.events import BEHIND, EventLog
from viiwork_core.testing.fake_clock import FakeClock
from viiwork_core.web import activity

SCOPE = {"type": "http", "method": "GET", "path": "/v1/activity/stream", "headers": []}


class Scene:
    """An ASGI server whose client reads, or does not."""

    def __init__(self) -> None:
        self.log = EventLog(FakeClock(), history=100)
        self.sent: list[dict[str, Any]] = []
        self.left, self.reads = asyncio.Event(), asyncio.Event()
        self.reads.set()

    async def receive(self) -> dict[str, Any]:
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.reads.wait()
        self.sent.append(message)

    def begin(self) -> asyncio.Task[None]:
        return asyncio.create_task(activity.stream(self.log, SCOPE, self.receive, self.send))

    async def until(self, pieces: int) -> None:
        async with asyncio.timeout(5):
            while len(self.sent) < pieces:  # noqa: ASYNC110  # a turn of the loop each
                await asyncio.sleep(0)

    @property
    def body(self) -> bytes:
        return b"".join(one.get("body", b"") for one in self.sent)

    @property
    def ended(self) -> bool:
        return not self.sent[-1].get("more_body", True)


def test_events_that_wait_go_out_together() -> None:
    async def scene() -> Scene:
        one = Scene()
        stream = one.begin()
        await one.until(2)
        for number in range(3):
            one.log.emit("system", str(number))
        one.log.close()
        await asyncio.wait_for(stream, 5)
        return one

    one = asyncio.run(scene())
    assert [message.get("body", b"").count(b"data: ") for message in one.sent] == [0, 0, 3, 0]
    assert one.ended


def test_a_client_that_leaves_is_forgotten() -> None:
    async def scene() -> Scene:
        one = Scene()
        stream = one.begin()
        await one.until(2)
        one.left.set()
        await asyncio.wait_for(stream, 5)
        one.log.emit("system", "unheard")
        return one

    one = asyncio.run(scene())
    assert b"unheard" not in one.body
    assert not one.ended


def test_a_client_that_does_not_read_is_cut_off_and_holds_nothing_up() -> None:
    async def scene() -> Scene:
        one = Scene()
        stream = one.begin()
        await one.until(2)
        one.reads.clear()
        one.log.emit("system", "taken, and stuck on its way")
        await asyncio.sleep(0)
        for number in range(BEHIND + 1):
            one.log.emit("system", str(number))
        await asyncio.wait_for(stream, 5)
        return one

    one = asyncio.run(scene())
    assert len(one.sent) == 2
    assert not one.ended, "it must be able to tell"


def test_silence_is_broken_by_a_comment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activity, "KEEP_ALIVE_S", 0.01)

    async def scene() -> Scene:
        one = Scene()
        stream = one.begin()
        await one.until(4)
        one.log.emit("system", "still told")
        one.log.close()
        await asyncio.wait_for(stream, 5)
        return one

    body = asyncio.run(scene()).body
    assert body.startswith(b": activity\n\n: live\n\n: still here\n\n: still here\n\n")
    assert b'"still told"' in body
    assert all(block.startswith((b": ", b"data: ")) for block in body.split(b"\n\n")[:-1])


def test_the_head_alone_has_no_body() -> None:
    async def scene() -> Scene:
        one = Scene()
        await activity.stream(one.log, {**SCOPE, "method": "HEAD"}, one.receive, one.send)
        return one

    one = asyncio.run(scene())
    assert (one.body, one.ended) == (b"", True)
