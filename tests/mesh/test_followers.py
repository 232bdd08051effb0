"""Following members over real connections: each once, whatever they do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest
from aiohttp import web

from viiwork_core.clock import SystemClock
from viiwork_core.mesh import followers
from viiwork_core.mesh.followers import PATH, Followers
from viiwork_core.mesh.links import Links
from viiwork_core.mesh.member import Member
from viiwork_core.observe.events import Event
from viiwork_core.security.signing import Signer, Verifier, header_text

KEY = b"k" * 32


class Peer:
    """A member's API: a stream of what the test says."""

    def __init__(self) -> None:
        self.answers = 0
        self.open: list[asyncio.Queue[bytes | None]] = []
        self.refused = 0
        self.hello = b": activity\n\n: live\n\n"
        self.status = 200
        self.kind = "text/event-stream"
        self._check = Verifier(KEY, node_id="run-1", clock=SystemClock())

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        assert request.path == PATH
        assert self._check.verify("GET", request.raw_path, header_text(request.raw_headers), b"").node == "me"
        self.answers += 1
        response = web.StreamResponse(status=self.status, headers={"Content-Type": self.kind})
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        await response.prepare(request)
        await response.write(self.hello)
        self.open.append(queue)
        try:
            while (text := await queue.get()) is not None:
                await response.write(text)
        finally:
            self.open.remove(queue)
        return response

    def say(self, **fields: Any) -> None:
        for queue in self.open:
            queue.put_nowait(event(**fields))

    def raw(self, text: bytes | None) -> None:
        for queue in self.open:
            queue.put_nowait(text)


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps({"t": 1, "type": "system", "message": "here", **fields}).encode() + b"\n\n"


class Members:
    """Who is there, as the test says."""

    def __init__(self) -> None:
        self._now: tuple[Member, ...] = ()
        self._changed = asyncio.Event()

    def are(self, *members: Member) -> None:
        self._now = members
        self._changed.set()

    async def changes(self) -> AsyncIterator[tuple[Member, ...]]:
        while True:
            self._changed.clear()
            yield self._now
            await self._changed.wait()


class Scene:
    """This node, following one member."""

    def __init__(self) -> None:
        self.peer = Peer()
        self.members = Members()
        self.told: list[tuple[str, Event]] = []
        self.member = Member(node="peer", node_id="run-1", host="127.0.0.1", api_port=1)
        self.followers: Any = None
        self.run: asyncio.Task[None] | None = None

    def tell(self, member: Member, one: Event) -> None:
        self.told.append((member.node, one))

    async def until(self, holds: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                assert self.run is not None
                assert not self.run.done()
                await asyncio.sleep(0.01)

    async def ended(self) -> None:
        assert self.run is not None
        self.run.cancel()
        with suppress(asyncio.CancelledError):
            await self.run

    def messages(self) -> list[str]:
        return [one.message for _, one in self.told]


@asynccontextmanager
async def following() -> AsyncIterator[Scene]:
    scene = Scene()
    async with AsyncExitStack() as stack:
        runner = web.ServerRunner(web.Server(scene.peer.answer), shutdown_timeout=0.1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        scene.member = Member(node="peer", node_id="run-1", host="127.0.0.1", api_port=runner.addresses[0][1])
        signer = Signer(KEY, node="me", clock=SystemClock())
        links = await stack.enter_async_context(Links(node="me", signer=signer))
        scene.followers = Followers(scene.members, links, clock=SystemClock(), first_wait_s=0.05)  # type: ignore[arg-type]  # only `changes` is used
        scene.members.are(scene.member)
        scene.run = asyncio.create_task(scene.followers.run(scene.tell))
        try:
            yield scene
        finally:
            await scene.ended()


def test_a_member_is_followed_by_one_signed_connection_until_the_end() -> None:
    async def run() -> None:
        async with following() as scene:
            await scene.until(lambda: scene.peer.open)
            scene.peer.say(message="one", n=1, hostname="someone-else", node_id="other")
            await scene.until(lambda: scene.told)
            node, one = scene.told[0]
            assert (node, one.message, one.n) == ("peer", "one", 1)
            assert [kept.event.message for _, kept in scene.followers.past()] == ["one"]
            assert scene.peer.answers == 1
            await scene.ended()
            assert scene.followers.past() == []
            async with asyncio.timeout(10):
                while scene.peer.open:
                    scene.peer.raw(b": x\n\n")  # a server notices when it writes
                    await asyncio.sleep(0.01)

    asyncio.run(run())


def test_after_a_break_what_was_known_is_no_news_and_what_ended_unseen_gets_an_end() -> None:
    async def run() -> None:
        async with following() as scene:
            await scene.until(lambda: scene.peer.open)
            for n, rid in ((1, "a"), (2, "b")):
                scene.peer.say(type="request", message="m → m/0", rid=rid, n=n)
            await scene.until(lambda: len(scene.told) == 2)
            past = event(type="request", message="m → m/0", rid="a", n=1, replay=True)
            scene.peer.hello = b": activity\n\n" + past + event(message="new", n=5, replay=True) + b": live\n\n"
            scene.peer.raw(None)
            await scene.until(lambda: len(scene.told) == 4)
            new, lost = [one for _, one in scene.told[2:]]
            assert (new.message, new.replay) == ("new", True)
            assert lost.rid == "b"
            assert lost.message.startswith("m → m/0 lost (")

    asyncio.run(run())


def test_a_member_that_is_gone_ends_its_requests_and_comes_back_as_another() -> None:
    async def run() -> None:
        async with following() as scene:
            await scene.until(lambda: scene.peer.open)
            scene.peer.say(type="request", message="m → m/0 first token after 0.1s", rid="a", n=1)
            await scene.until(lambda: scene.told)
            scene.members.are()
            await scene.until(lambda: len(scene.told) == 2)
            assert scene.messages()[1].startswith("m → m/0 lost (")
            assert scene.followers.past() == []
            scene.members.are(scene.member)
            await scene.until(lambda: scene.peer.answers == 2)

    asyncio.run(run())


def test_lines_may_come_in_any_pieces_and_others_are_skipped() -> None:
    async def run() -> None:
        async with following() as scene:
            await scene.until(lambda: scene.peer.open)
            for piece in (
                b"event: x\nda",
                b"ta: {}\n\ndata: [1\n\n",
                *(bytes([one]) for one in event(message="ä", n=3)),
            ):
                scene.peer.raw(piece)
            await scene.until(lambda: scene.told)
            assert scene.messages() == ["ä"]
            assert scene.peer.answers == 1

    asyncio.run(run())


def test_a_line_without_an_end_breaks_the_connection() -> None:
    async def run() -> None:
        async with following() as scene:
            await scene.until(lambda: scene.peer.open)
            for _ in range(40):
                scene.peer.raw(b"x" * 1024)
            await scene.until(lambda: scene.peer.answers > 1)
            assert scene.told == []

    asyncio.run(run())


@pytest.mark.parametrize(
    ("status", "kind"), [(401, "application/json"), (302, "text/event-stream"), (200, "text/html")]
)
def test_another_answer_is_tried_again_less_and_less_often(status: int, kind: str) -> None:
    async def run() -> None:
        async with following() as scene:
            scene.peer.status, scene.peer.kind = status, kind
            await scene.until(lambda: scene.peer.answers >= 3)
            assert scene.told == []
            scene.peer.status, scene.peer.kind = 200, "text/event-stream"
            await scene.until(lambda: scene.peer.open and scene.peer.answers >= 4)

    asyncio.run(run())


def test_silence_beyond_the_comments_is_a_break(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followers, "SILENCE_S", 0.1)

    async def run() -> None:
        async with following() as scene:
            await scene.until(lambda: scene.peer.answers >= 2)

    asyncio.run(run())


def test_a_run_may_begin_while_the_one_before_it_ends() -> None:
    async def run() -> None:
        async with following() as scene:
            await scene.until(lambda: scene.peer.open)
            before = scene.run
            assert before is not None
            scene.run = asyncio.create_task(scene.followers.run(scene.tell))
            before.cancel()
            with suppress(asyncio.CancelledError):
                await before
            await scene.until(lambda: scene.peer.answers == 2)
            async with asyncio.timeout(10):
                while not scene.told:
                    scene.peer.say(message="again", n=1)
                    await asyncio.sleep(0.01)
            assert [kept.event.message for _, kept in scene.followers.past()] == ["again"]

    asyncio.run(run())
