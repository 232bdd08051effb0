"""The attempt loop: what goes elsewhere, how often, and what the client is told in the end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from viiwork_core import Query
from viiwork_core.clock import SystemClock
from viiwork_core.engines.slots import Reservation
from viiwork_core.engines.states import BackendState
from viiwork_core.errors import (
    AnswerCut,
    BackendFailed,
    InvalidRequest,
    ModelNotServed,
    NoCapacity,
    NoFreeSlot,
    NotFound,
    ViiworkError,
)
from viiwork_core.mesh.member import Member
from viiwork_core.proxy import entry, patience
from viiwork_core.proxy.body import Body
from viiwork_core.proxy.dispatch import Dispatcher
from viiwork_core.proxy.entry import Entry, Receiver
from viiwork_core.proxy.exchange import Exchange
from viiwork_core.proxy.request import Whose, build

sys.path.insert(0, str(Path(__file__).parents[1] / "routing"))

from router_scene import Places  # found by the line above


class Scene:
    """This node with backends m/0 and m/1, and a peer; each place says what the test lets it say, then serves."""

    def __init__(self, *, backends: int = 2, peer: bool = True, retries: int = 1, queue_timeout: float = 0.2) -> None:
        self.places = Places()
        clock = SystemClock()
        for index in range(backends):
            self.places.backend(8, index)
        if peer:
            self.places.peer("peer", slots=8, asked_at=clock.monotonic())
        self.replies: dict[str, list[ViiworkError]] = {}
        self.asked: list[str] = []
        self.sent: list[Any] = []
        self.starts = False
        self.silent: set[str] = set()
        """Places that say nothing at all."""

        self.status = 200
        self.entry = Entry(
            router=self.places.router,
            dispatcher=Dispatcher(self.places.router, clock, queue_timeout=queue_timeout),
            book=self.places.book,
            executor=Executes(self),  # type: ignore[arg-type]  # stands in
            forwarder=Forwards(self),  # type: ignore[arg-type]  # stands in
            clock=clock,
            queue_timeout=queue_timeout,
            forward_retry=retries,
        )

    def exchange(self, weight: int = 1, *, stream: bool = False) -> Exchange:
        async def send(message: Any) -> None:
            self.sent.append(message)

        path = "/v1/chat/completions"
        scope = {"path": path, "raw_path": path.encode(), "query_string": b"", "headers": []}
        body = Body(b'{"model":"m","n":%d,"stream":%b}' % (weight, b"true" if stream else b"false"))
        return Exchange(build(scope, body, Whose(), pin=None, rid="r"), send)

    def serve(self) -> None:
        asyncio.run(self.entry.serve(self.exchange()))

    async def reach(self, exchange: Exchange, place: str) -> None:
        self.asked.append(place)
        if self.starts:
            await exchange.begin(200, [], from_peer=False, extra={})
        if place in self.silent:
            await asyncio.Event().wait()
        if errors := self.replies.get(place):
            raise errors.pop(0)
        await exchange.begin(self.status, [], from_peer=False, extra={})

    @property
    def ended(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False

    def all_free(self) -> bool:
        return self.places.local.free("m", 1) == 16 and not self.places.router._peers["peer"].forwards


class Executes:
    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    def overtake(self, query: Query) -> None:
        del query

    async def run(self, exchange: Exchange, reservation: Reservation) -> None:
        try:
            await self.scene.reach(exchange, reservation.backend)
        finally:
            self.scene.places.book.release(reservation)


class Forwards:
    def __init__(self, scene: Scene) -> None:
        self.scene = scene

    async def run(self, exchange: Exchange, member: Member) -> None:
        await self.scene.reach(exchange, member.node)


def test_the_first_place_that_answers_ends_it() -> None:
    scene = Scene()
    scene.serve()
    assert (scene.asked, scene.ended) == (["m/0"], True)
    assert scene.all_free()


@pytest.mark.parametrize("error", [NoFreeSlot("no"), BackendFailed("no")])
def test_what_fails_here_is_tried_at_the_next_place_once(error: ViiworkError) -> None:
    scene = Scene()
    scene.replies = {"m/0": [error] * 9}
    scene.serve()
    assert (scene.asked, scene.ended) == (["m/0", "m/1"], True)
    assert scene.all_free()


@pytest.mark.parametrize(
    ("retries", "asked"),
    [
        (0, ["m/0", "m/0"]),
        (1, ["m/0", "m/1", "m/0"]),
        (2, ["m/0", "m/1", "peer", "m/0"]),
        (9, ["m/0", "m/1", "peer", "m/0"]),
    ],
)
def test_no_place_is_tried_twice_but_in_the_last_try(retries: int, asked: Sequence[str]) -> None:
    scene = Scene(retries=retries)
    scene.replies = {place: [NoFreeSlot("full") for _ in range(9)] for place in ("m/0", "m/1", "peer")}
    with pytest.raises(NoCapacity, match="no route has capacity") as told:
        scene.serve()
    assert told.value.retry_after == 2
    assert (scene.asked, scene.sent) == (asked, [])
    assert scene.all_free()


@pytest.mark.parametrize(
    "errors",
    [
        [NoFreeSlot("a"), BackendFailed("it broke"), NoFreeSlot("c")],
        [BackendFailed("it broke"), BackendFailed("it broke"), BackendFailed("it broke")],
    ],
)
def test_one_real_failure_makes_it_one(errors: list[ViiworkError]) -> None:
    scene = Scene(peer=False)
    scene.replies = {"m/0": [errors[0], errors[2]], "m/1": [errors[1]]}
    with pytest.raises(BackendFailed, match="no route could serve the request: ") as told:
        scene.serve()
    assert told.value.message.count("it broke") == 1


def test_a_peer_that_lost_the_model_is_a_refusal() -> None:
    scene = Scene(backends=0)
    scene.replies = {"peer": [ModelNotServed("gone") for _ in range(9)]}
    with pytest.raises(NoFreeSlot, match="within"):
        scene.serve()
    assert scene.asked == ["peer"], "it counts as full until it reports again"


@pytest.mark.parametrize("error", [InvalidRequest("bad"), NotFound("no such path")])
def test_what_would_fail_anywhere_is_tried_nowhere_else(error: ViiworkError) -> None:
    scene = Scene()
    scene.replies = {"m/0": [error]}
    with pytest.raises(type(error)):
        scene.serve()
    assert scene.asked == ["m/0"]


@pytest.mark.parametrize("error", [AnswerCut("cut"), BackendFailed("late"), NoFreeSlot("late")])
def test_nothing_is_tried_again_after_the_first_byte(error: ViiworkError) -> None:
    scene = Scene()
    scene.starts = True
    scene.replies = {"m/0": [error]}
    with pytest.raises(type(error)):
        scene.serve()
    assert scene.asked == ["m/0"]
    assert not scene.ended


def test_the_last_try_waits_for_what_is_left_of_the_time() -> None:
    scene = Scene(backends=0)
    scene.replies = {"peer": [BackendFailed("it broke")]}
    with pytest.raises(BackendFailed, match="it broke"):
        scene.serve()
    assert scene.asked == ["peer"]
    assert scene.places.router.queued("m") == 0


def test_a_receiver_never_waits_and_never_forwards() -> None:
    scene = Scene(backends=1)
    receiver = Receiver(local=scene.places.local, executor=Executes(scene))  # type: ignore[arg-type]  # stands in
    asyncio.run(receiver.serve(scene.exchange()))
    assert (scene.asked, scene.ended) == (["m/0"], True)
    taken = scene.places.local.reserve(scene.places.ticket().query, 8)
    assert taken is not None
    with pytest.raises(NoFreeSlot, match="no free slot"):
        asyncio.run(receiver.serve(scene.exchange()))
    scene.places.book.release(taken)
    scene.replies = {"m/0": [BackendFailed("it broke")]}
    with pytest.raises(NoCapacity, match="backend failed before responding"):
        asyncio.run(receiver.serve(scene.exchange()))
    assert scene.asked == ["m/0", "m/0"]


def test_a_receiver_says_so_when_it_has_lost_the_model() -> None:
    scene = Scene(backends=0)
    receiver = Receiver(local=scene.places.local, executor=Executes(scene))  # type: ignore[arg-type]  # stands in
    with pytest.raises(ModelNotServed) as told:
        asyncio.run(receiver.serve(scene.exchange()))
    assert (told.value.status, told.value.retry_after) == (503, 1)


# Peers that are silent


class Peers(Scene):
    """Two peers, of which the first says nothing."""

    def __init__(self, *, first_byte_s: float | None = 0.05) -> None:
        super().__init__(backends=0, peer=False)
        now = SystemClock().monotonic()
        self.places.peer("deaf", slots=8, asked_at=now, first_byte_s=first_byte_s)
        self.places.peer("spare", slots=8, asked_at=now)
        self.silent = {"deaf"}


def test_a_stream_that_a_peer_is_silent_about_goes_elsewhere_and_so_does_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(entry, "MARGIN", 0.05)
    monkeypatch.setattr(patience, "AGAIN", 0.05)
    scene = Peers()
    asyncio.run(scene.entry.serve(scene.exchange(stream=True)))
    asyncio.run(scene.entry.serve(scene.exchange(stream=True)))
    assert scene.asked == ["deaf", "spare", "spare"]
    assert not scene.places.router._peers["deaf"].forwards


def test_a_plain_request_waits_for_a_peer_as_long_as_that_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patience, "AGAIN", 0.05)

    async def play() -> None:
        scene = Peers()
        work = asyncio.ensure_future(scene.entry.serve(scene.exchange()))
        done, _ = await asyncio.wait({work}, timeout=0.5)
        assert (done, scene.asked) == (set(), ["deaf"])
        scene.places.router.forget("deaf")
        await asyncio.wait_for(work, 5)
        assert scene.asked == ["deaf", "spare"]

    asyncio.run(play())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("died", [True, False])
def test_a_peer_that_dies_is_not_waited_for_and_one_that_leaves_in_order_may_finish(
    died: bool, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(patience, "LOOK", 0.02)

    async def play() -> None:
        scene = Peers(first_byte_s=None)
        router = scene.places.router
        work = asyncio.ensure_future(scene.entry.serve(scene.exchange(stream=stream)))
        await asyncio.wait({work}, timeout=0.1)
        assert scene.asked == ["deaf"]
        if died:
            router.silent(router._peers["deaf"].view.member, SystemClock().monotonic())
            await asyncio.wait({work}, timeout=0.2)
            assert not work.done(), "a poll that fails does not end what is under way"
        router.forget("deaf")
        await asyncio.wait({work}, timeout=5 if died else 0.3)
        assert scene.asked == (["deaf", "spare"] if died else ["deaf"])
        work.cancel()
        await asyncio.wait({work})

    asyncio.run(play())


@pytest.mark.parametrize(("stream", "silence", "blamed"), [(True, 0.2, True), (True, 0.0, False), (False, 0.2, False)])
def test_a_client_that_gives_a_peer_up_after_a_long_silence_proves_something(
    stream: bool, silence: float, blamed: bool
) -> None:
    async def play() -> None:
        scene = Peers(first_byte_s=0.4 if silence else None)
        exchange = scene.exchange(stream=stream)
        work = asyncio.ensure_future(scene.entry.serve(exchange))
        async with asyncio.timeout(5):
            while not scene.asked or exchange.silence(SystemClock().monotonic()) < silence:  # noqa: ASYNC110  # a time
                await asyncio.sleep(0.005)
        work.cancel()
        await asyncio.wait({work})
        scene.silent = set()
        await scene.entry.serve(scene.exchange())
        assert scene.asked == ["deaf", "spare" if blamed else "deaf"]

    asyncio.run(play())


@pytest.mark.parametrize(("status", "second"), [(200, "deaf"), (400, "deaf"), (500, "spare")])
def test_a_peer_that_answers_with_its_own_fault_is_passed_over(status: int, second: str) -> None:
    scene = Peers()
    scene.silent, scene.status = set(), status
    scene.serve()
    scene.serve()
    assert scene.asked == ["deaf", second]


def test_a_receiver_says_so_when_its_model_is_dead_for_good() -> None:
    scene = Scene(backends=1, peer=False)
    scene.places.book.see(replace(scene.places.book.view("m/0"), state=BackendState.DEAD, reason="out of memory"))
    receiver = Receiver(local=scene.places.local, executor=Executes(scene))  # type: ignore[arg-type]  # stands in
    with pytest.raises(ModelNotServed):
        asyncio.run(receiver.serve(scene.exchange()))
    with pytest.raises(ModelNotServed, match="out of memory"):
        scene.serve()
