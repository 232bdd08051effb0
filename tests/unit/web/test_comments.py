"""A stream that has its place and not its first token."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from viiwork_core.contracts.policy import Query
from viiwork_core.proxy.body import Body
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.request import InferenceRequest
from viiwork_core.web import comments
from viiwork_core.web.comments import COMMENT, Comments, in_turn

WORD = b"data: a\n\n"


class Scene:
    """An exchange, and a server that takes one message at a time."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.news = asyncio.Event()
        self.slow = False
        self._sending = False
        request = InferenceRequest(
            id="r",
            path="/v1/chat/completions",
            target="/v1/chat/completions",
            headers=[],
            body=Body(b"{}"),
            query=Query(model="m", session=None, prompt_tokens=1),
            weight=1,
            stream=True,
            wants_usage=False,
            pin=None,
        )
        self.exchange = Exchange(request, in_turn(self.send), tells_place=True)

    async def send(self, message: Any) -> None:
        assert not self._sending, "two messages at a time"
        self._sending = True
        if self.slow:
            await asyncio.sleep(0.02)
        self.sent.append(message)
        self._sending = False
        self.news.set()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not holds():
                self.news.clear()
                await self.news.wait()

    async def some(self) -> None:
        """At least two comments more."""
        before = self.body.count(COMMENT)
        await self.until(lambda: self.body.count(COMMENT) >= before + 2)

    @property
    def body(self) -> bytes:
        return b"".join(one["body"] for one in self.sent if one["type"] == "http.response.body")

    @property
    def heads(self) -> list[int]:
        return [one["status"] for one in self.sent if one["type"] == "http.response.start"]


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comments, "EACH_S", 0.01)


def run(act: Callable[[Scene], Awaitable[None]], *, placed: bool = True) -> Scene:
    async def scene() -> Scene:
        one = Scene()
        told = Comments(one.exchange)
        try:
            if placed:
                one.exchange.placed(1.0, backend="m/0")
            await act(one)
        finally:
            told.stop()
        return one

    return asyncio.run(scene())


async def another_is_told() -> None:
    """Another stream has had two comments.

    Its timer was set after that of the scene, which so was due before it each time: a comment of the scene's would be
    here by now.
    """
    another = Scene()
    told = Comments(another.exchange)
    try:
        another.exchange.placed(1.0, backend="m/0")
        await another.some()
    finally:
        told.stop()


async def answered(one: Scene) -> None:
    one.exchange.streams = True
    await one.exchange.begin(200, [], from_peer=False, extra={})
    one.exchange.first_byte_at = 2.0
    await one.exchange.pass_on(WORD)


def test_comments_come_until_the_first_byte() -> None:
    async def act(one: Scene) -> None:
        await one.some()
        assert not one.exchange.started, "another route may still be tried"
        await answered(one)
        await another_is_told()
        await one.exchange.finish()

    one = run(act)
    assert one.heads == [200]
    assert one.body.replace(COMMENT, b"") == WORD
    assert one.body.endswith(WORD)


def test_they_come_between_the_engine_s_head_and_its_first_byte_too() -> None:
    async def act(one: Scene) -> None:
        one.exchange.streams = True
        await one.exchange.begin(200, [(b"x-gpu", b"a")], from_peer=True, extra={})
        await one.some()

    one = run(act)
    assert one.heads == [200]
    assert not one.exchange.announced, "the engine's own head has gone out"


@pytest.mark.parametrize("status", [200, 400])
def test_an_answer_that_is_no_stream_has_none(status: int) -> None:
    async def act(one: Scene) -> None:
        await one.exchange.begin(status, [(b"content-length", b"2")], from_peer=False, extra={})
        await another_is_told()
        await one.exchange.pass_on(b"{}")

    one = run(act)
    assert (one.heads, one.body) == ([status], b"{}")


def test_one_that_waits_in_line_is_told_its_place_instead() -> None:
    async def act(one: Scene) -> None:
        await another_is_told()

    assert run(act, placed=False).sent == []


def test_none_follows_an_error() -> None:
    async def act(one: Scene) -> None:
        await one.some()
        one.exchange.status = 502
        await one.exchange.fail(b"{}")
        await another_is_told()

    assert run(act).body.endswith(b"data: {}\n\n")


def test_an_answer_that_comes_while_the_first_comment_is_sent_stays_whole() -> None:
    async def act(one: Scene) -> None:
        one.slow = True
        await one.until(lambda: one.exchange.announced or bool(one.sent))
        await answered(one)
        await one.exchange.finish()

    one = run(act)
    assert one.heads == [200]
    assert one.body.replace(COMMENT, b"") == WORD
