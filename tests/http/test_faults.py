"""Faults that users of such systems have reported, each as a scene on one node with two backends of one model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import pytest
from http_node import Answer, Client, EngineEnd, Node, ask, chat, connected, model, script, soon, started, until

FINE = script(("json", 200, "{}"))
SLOTS = 2


@pytest.fixture(scope="module")
def twin_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    config = {
        "routing": {"queue_timeout": "5s"},
        "health": {"interval": "0.1s", "timeout": "1s"},
        "models": [model("twins", gpus=[0, 1], parallel=SLOTS), model("singles", gpus=[2, 3], parallel=1)],
    }
    with started("one", tmp_path_factory.mktemp("node") / "one", config) as node:
        yield node


@pytest.fixture
def node(twin_node: Node) -> Iterator[Node]:
    """The node, its engines as they should be, with all slots free before and after."""
    yield twin_node
    for name in ("twins", "singles"):
        for engine in engines(twin_node, name):
            engine.refuse()
            engine.mute(0)
            engine.tell(None)
        until(lambda name=name: twin_node.idle(name), f"all slots of {name} come free again", 5)  # type: ignore[misc]  # mypy cannot type a lambda's default


def engines(node: Node, name: str) -> tuple[EngineEnd, EngineEnd]:
    return node.engine(name, 0), node.engine(name, 1)


def has(engine: EngineEnd, rid: str) -> bool:
    """Whether the engine was ever sent a request."""
    return any(["x-request-id", rid] in one["headers"] for one in engine.seen())


def backend(answer: Answer) -> int:
    """The number of the backend that answered."""
    assert answer.status == 200
    return int(answer.headers["x-viiwork-backend"].rpartition("/")[2])


@asynccontextmanager
async def running(node: Node, name: str, rid: str, **headers: str) -> AsyncIterator[Client]:
    """A request that an engine has, until its client leaves with the block."""
    given = [("X-Request-Id", rid), *((key.replace("_", "-"), value) for key, value in headers.items())]
    async with connected(node) as client:
        await client.ask(chat(name, FINE), headers=given)
        both = engines(node, name)
        await soon(lambda: any(has(engine, rid) for engine in both), f"{rid} arrives")
        yield client


# A backend that says nothing


def test_a_silent_backend_holds_up_nobody_else(node: Node) -> None:
    """All slots of one are taken by requests that it never answers; the other goes on."""
    first, second = engines(node, "twins")

    async def scene() -> None:
        first.mute(SLOTS)
        second.mute(SLOTS)
        async with asyncio.timeout(20), AsyncExitStack() as held:
            names = [f"silent-{number}" for number in range(2 * SLOTS)]
            clients = {rid: await held.enter_async_context(running(node, "twins", rid)) for rid in names}
            for rid in names:
                if has(second, rid):
                    clients[rid].leave()
            await soon(lambda: sorted(node.slots("twins")) == ["free"] * SLOTS + ["running"] * SLOTS, "half are free")
            answers = await asyncio.gather(*(ask(node, chat("twins", FINE)) for _ in range(20)))
            assert {backend(one) for one in answers} == {1}
            assert node.slots("twins").count("running") == SLOTS, "and the first one is silent still"

    asyncio.run(scene())


def test_a_session_whose_backend_is_stuck_goes_on_with_the_other(node: Node) -> None:
    """The engine stays busy with what its client has given up."""
    at = backend(asyncio.run(ask(node, chat("singles"), headers=[("X-Session-Id", "stuck")])))
    engine = engines(node, "singles")[at]

    async def scene() -> Answer:
        engine.mute(1)
        async with running(node, "singles", "given-up", X_Session_Id="stuck"):
            assert has(engine, "given-up"), "a session stays where it was"
            engine.tell({"slots": 1, "busy": 1, "each": [{"id": 0, "busy": True}]})
        await soon(lambda: "aborting" in node.slots("singles"), "its client has left")
        return await ask(node, chat("singles"), headers=[("X-Session-Id", "stuck")])

    answer = asyncio.run(scene())
    assert backend(answer) == 1 - at
    assert int(answer.headers["x-viiwork-queued-ms"]) < 1000


@pytest.mark.xfail(
    reason="a backend that was given up on without a byte is as good as any the next time", raises=TimeoutError
)
def test_a_session_whose_backend_stays_silent_is_tried_elsewhere(node: Node) -> None:
    """The engine answers probes, forgets what its clients give up, and never says a word to anybody."""
    at = backend(asyncio.run(ask(node, chat("singles"), headers=[("X-Session-Id", "silence")])))
    engine = engines(node, "singles")[at]

    async def scene() -> Answer:
        engine.mute(2)
        async with running(node, "singles", "given-up-too", X_Session_Id="silence"):
            assert has(engine, "given-up-too")
        await soon(lambda: node.idle("singles"), "its client has left")
        async with asyncio.timeout(3):
            return await ask(node, chat("singles"), headers=[("X-Session-Id", "silence")])

    assert backend(asyncio.run(scene())) == 1 - at


# Counts


def test_health_checks_do_not_touch_the_counts(node: Node) -> None:
    both = engines(node, "twins")

    async def scene() -> None:
        steps = script(("stream",), ("chunk", b"data: a\n\n"), ("gate", "probed"), ("end",))
        async with AsyncExitStack() as held:
            clients = [await held.enter_async_context(connected(node)) for _ in range(2 * SLOTS)]
            for client in clients:
                await client.ask(chat("twins", steps, stream=True))
            await soon(lambda: node.slots("twins") == ["running"] * 2 * SLOTS, "all run")
            before = [engine.probes() for engine in both]
            for cycle in range(1, 4):
                for engine, count in zip(both, before, strict=True):
                    await soon(lambda e=engine, c=count: e.probes() >= c + cycle, "it was probed")  # type: ignore[misc]  # noqa: B023  # awaited at once
                assert (node.model("twins")["busy"], set(node.slots("twins"))) == (2 * SLOTS, {"running"})
            for engine in both:
                engine.open("probed")
            for client in clients:
                answer = await client.read(await client.answer())
                assert (answer.body, answer.broken) == (b"data: a\n\n", False)

    asyncio.run(scene())


def test_counts_stay_in_their_bounds_whatever_the_engines_say(node: Node) -> None:
    """A hundred requests come and go under reports that are wrong by any number, and too late."""
    both = engines(node, "twins")
    lies = [
        {"slots": SLOTS, "busy": busy, "each": [{"id": number, "busy": number < busy} for number in range(SLOTS)]}
        for busy in (SLOTS, 0, 1)
    ]
    busy: list[int] = []

    async def scene() -> list[Answer]:
        body = chat("twins", script(("wait", 0.02), ("json", 200, "{}")))
        work = [asyncio.ensure_future(ask(node, body)) for _ in range(100)]
        turn = 0
        while not all(one.done() for one in work):
            for engine in both:
                await asyncio.to_thread(engine.tell, lies[turn % len(lies)])
                turn += 1
            busy.append((await asyncio.to_thread(node.model, "twins"))["busy"])
        return await asyncio.gather(*work)

    answers = asyncio.run(scene())
    assert {answer.status for answer in answers} <= {200, 429}
    assert sum(answer.status == 200 for answer in answers) > SLOTS
    assert 0 <= min(busy) <= max(busy) <= 2 * SLOTS
    assert max(engine.most_at_once() for engine in both) <= SLOTS


# Who gets what


@pytest.mark.xfail(
    reason="a backend that refuses is asked again as soon as its engine says that it is idle", raises=AssertionError
)
def test_a_backend_that_fails_fast_does_not_draw_the_requests(node: Node) -> None:
    """It looks idle because it refuses at once. At most one request in ten may try it."""
    first, _ = engines(node, "twins")
    before = len(first.seen())
    first.refuse(*[503] * 1000)

    async def scene() -> list[Answer]:
        body = chat("twins", script(("wait", 0.02), ("json", 200, "{}")))
        answers: list[Answer] = []
        for _ in range(50):
            answers += await asyncio.gather(ask(node, body), ask(node, body))
        return answers

    assert {backend(answer) for answer in asyncio.run(scene())} == {1}
    assert len(first.seen()) - before <= 10


def test_conversations_that_begin_alike_do_not_stick_together(node: Node) -> None:
    """One system prompt and one first message, and no word of a session: they are two."""

    async def scene() -> None:
        opening = [{"role": "system", "content": "You are kind."}, {"role": "user", "content": "Hello"}]
        steps = script(("gate", "alike"), ("json", 200, "{}"))
        both = [asyncio.ensure_future(ask(node, chat("twins", steps, messages=opening))) for _ in range(2)]
        await soon(lambda: node.model("twins")["busy"] == 2, "both run")
        for engine in engines(node, "twins"):
            engine.open("alike")
        assert {backend(await one) for one in both} == {0, 1}

    asyncio.run(scene())


# While models load


@contextmanager
def cold(tmp: pytest.TempPathFactory, **routing: object) -> Iterator[Node]:
    """A node whose two models have only begun to load, one after the other."""
    config = {
        "routing": routing,
        "models": [model(name, "fake", parallel=1, fake={"load_seconds": 1.0}) for name in ("one", "other")],
    }
    with started("cold", tmp.mktemp("node") / "cold", config, healthy=False) as node:
        until(lambda: all(node.model(name)["backends"] for name in ("one", "other")), "both are known")
        assert node.model("other")["backends"][0]["status"] == "starting"
        yield node


def test_two_cold_models_that_are_asked_at_once_both_answer(tmp_path_factory: pytest.TempPathFactory) -> None:
    with cold(tmp_path_factory) as node:

        async def scene() -> list[Answer]:
            return await asyncio.gather(*(ask(node, chat(name, max_tokens=3)) for name in ("other", "one", "other")))

        assert [answer.status for answer in asyncio.run(scene())] == [200] * 3


def test_a_client_that_leaves_while_the_model_loads_is_no_success(tmp_path_factory: pytest.TempPathFactory) -> None:
    with cold(tmp_path_factory) as node:

        async def scene() -> None:
            async with connected(node) as client:
                await client.ask(chat("other"), headers=[("X-Request-Id", "left")])
                await soon(lambda: node.model("other")["queued"] == 1, "it waits")
                client.leave()

        asyncio.run(scene())
        event = node.heard("request", request_id="left")
        assert (event["status"], event["backend"]) == (499, None)
        until(lambda: node.model("other")["queued"] == 0, "it waits no longer")
        until(node.ready, "both are loaded")
        assert node.engine("other").fake_state()["completed"] == 0


def test_the_queues_bound_holds_before_and_after_a_model_is_loaded(tmp_path_factory: pytest.TempPathFactory) -> None:
    with cold(tmp_path_factory, queue_max=2, queue_timeout="20s") as node:

        async def full(ahead: int) -> None:
            """So many more than the slots and the queue take, and each answer is an honest one."""
            body = chat("other", max_tokens=3)
            waiting = [asyncio.ensure_future(ask(node, body)) for _ in range(ahead)]
            await soon(lambda: node.model("other")["queued"] == 2, "the queue is full")
            refused = await ask(node, body)
            assert (refused.status, refused.error["code"]) == (429, "queue_full")
            assert [(await one).status for one in waiting] == [200] * ahead

        asyncio.run(full(2))
        until(node.ready, "both are loaded")

        async def loaded() -> None:
            async with connected(node) as holder:
                await holder.ask(chat("other", max_tokens=8000, stream=True))
                assert (await holder.answer()).status == 200
                body = chat("other", max_tokens=3)
                waiting = [asyncio.ensure_future(ask(node, body)) for _ in range(2)]
                await soon(lambda: node.model("other")["queued"] == 2, "the queue is full")
                refused = await ask(node, body)
                assert (refused.status, refused.error["code"]) == (429, "queue_full")
                holder.leave()
                assert [(await one).status for one in waiting] == [200] * 2

        asyncio.run(loaded())
