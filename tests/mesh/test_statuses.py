"""Members' statuses: asked for when somebody looks, seldom, at once, and not believed for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from aiohttp import web

from viiwork_core.mesh.links import Links
from viiwork_core.mesh.member import Member
from viiwork_core.mesh.statuses import ASK_EACH_S, FORGOTTEN_S, PATH, Statuses
from viiwork_core.testing.fake_clock import FakeClock


class Scene:
    """Some members, one server each."""

    def __init__(self, links: Links) -> None:
        self.clock = FakeClock()
        self.statuses = Statuses(links, clock=self.clock)
        self.members: list[Member] = []
        self.asked: list[str] = []
        self.well = True
        self.all_asked = asyncio.Event()

    async def answer(self, node: str, request: web.BaseRequest) -> web.Response:
        assert request.path == PATH
        self.asked.append(node)
        if len(self.asked) >= len(self.members):
            self.all_asked.set()
        await self.all_asked.wait()  # each is asked before any has answered
        if not self.well:
            return web.Response(status=500)
        return web.json_response({"node": node, "node_id": f"{node}-1", "ver": "1", "uptime_s": len(self.asked)})

    def uptime(self, at: int = 0) -> int | None:
        status = self.statuses.of(self.members[at])
        return None if status is None else status.uptime_s


@asynccontextmanager
async def members(number: int) -> AsyncIterator[Scene]:
    async with AsyncExitStack() as stack:
        scene = Scene(await stack.enter_async_context(Links(node="me", signer=None)))
        for at in range(number):
            node = f"n{at}"

            async def answer(request: web.BaseRequest, node: str = node) -> web.Response:
                return await scene.answer(node, request)

            runner = web.ServerRunner(web.Server(answer), shutdown_timeout=0.1)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            port = runner.addresses[0][1]
            scene.members.append(Member(node=node, node_id=f"{node}-1", host="127.0.0.1", api_port=port))
        yield scene


def test_all_are_asked_at_once_and_each_once_however_many_look() -> None:
    async def run() -> None:
        async with members(5) as scene:
            assert scene.uptime() is None
            await asyncio.gather(*(scene.statuses.refresh(scene.members) for _ in range(10)))
            assert sorted(scene.asked) == ["n0", "n1", "n2", "n3", "n4"]
            assert all(scene.uptime(at) for at in range(5))
            scene.clock.advance(ASK_EACH_S)
            await scene.statuses.refresh(scene.members)
            assert len(scene.asked) == 10

    asyncio.run(run())


def test_one_that_fails_is_not_asked_at_once_again_and_its_last_words_are_forgotten() -> None:
    async def run() -> None:
        async with members(1) as scene:
            await scene.statuses.refresh(scene.members)
            scene.well = False
            scene.clock.advance(ASK_EACH_S)
            for _ in range(3):
                await scene.statuses.refresh(scene.members)
            assert (scene.uptime(), len(scene.asked)) == (1, 2)
            scene.clock.advance(FORGOTTEN_S - ASK_EACH_S + 1)
            await scene.statuses.refresh(scene.members)
            assert scene.uptime() is None
            scene.well = True
            scene.clock.advance(ASK_EACH_S)
            await scene.statuses.refresh(scene.members)
            assert scene.uptime() == 4

    asyncio.run(run())


def test_who_is_no_member_any_more_is_forgotten() -> None:
    async def run() -> None:
        async with members(2) as scene:
            await scene.statuses.refresh(scene.members)
            await scene.statuses.refresh(scene.members[:1])
            assert (scene.uptime(0), scene.uptime(1)) != (None, None)
            assert scene.uptime(1) is None

    asyncio.run(run())
