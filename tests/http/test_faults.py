"""Faults that users of such systems have reported, each as a scene on one node with two backends of one model."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager

import pytest
from http_node import (
    Answer,
    Client,
    EngineEnd,
    Node,
    ask,
    chat,
    connected,
    model,
    script,
    soon,
    started,
    streamed,
    until,
)

FINE = script(("json", 200, "{}"))
SLOTS = 2
PATIENCE = 2.0
"""Seconds that the quiet ones may be silent."""

MODELS = ("twins", "singles", "quiet")


@pytest.fixture(scope="module")
def twin_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    config = {
        "routing": {"queue_timeout": "5s"},
        "health": {"interval": "0.1s", "timeout": "1s"},
        "models": [
            model("twins", gpus=[0, 1], parallel=SLOTS),
            model("singles", gpus=[2, 3], parallel=1),
            model("quiet", gpus=[4, 5], parallel=SLOTS, first_byte_timeout=f"{PATIENCE:g}s"),
        ],
    }
    with started("one", tmp_path_factory.mktemp("node") / "one", config) as node:
        yield node


@pytest.fixture
def node(twin_node: Node) -> Iterator[Node]:
    """The node, its engines as they should be, with all slots free before and after."""
    yield twin_node
    for name in MODELS:
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
async def running(node: Node, name: str, rid: str, *, stream: bool = False, **headers: str) -> AsyncIterator[Client]:
    """A request that an engine has, until its client leaves with the block."""
    given = [("X-Request-Id", rid), *((key.replace("_", "-"), value) for key, value in headers.items())]
    async with connected(node) as client:
        await client.ask(chat(name, FINE, stream=stream), headers=given)
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


def settled(node: Node, session: str) -> tuple[int, EngineEnd]:
    """A session of the quiet ones: where it is, and that engine."""
    at = backend(asyncio.run(ask(node, chat("quiet"), headers=[("X-Session-Id", session)])))
    return at, node.engine("quiet", at)


def test_a_stream_whose_backend_stays_silent_goes_elsewhere_and_so_does_the_session(node: Node) -> None:
    """The engine answers probes, and says nothing to anybody else."""
    at, engine = settled(node, "silence")
    engine.mute(1)

    async def scene() -> list[Answer]:
        given = [("X-Session-Id", "silence"), ("X-Request-Id", "unheard")]
        first = await ask(node, chat("quiet", streamed(b"data: a\n\n"), stream=True), headers=given)
        return [first, await ask(node, chat("quiet"), headers=given[:1])]

    first, second = asyncio.run(scene())
    assert (backend(first), first.body) == (1 - at, b"data: a\n\n")
    assert has(engine, "unheard")
    assert until(lambda: engine.seen()[-1]["left"], "the engine's answer is not wanted any more")
    assert backend(second) == 1 - at, "nobody meets the same silence again"


def test_a_session_whose_client_gave_a_silent_backend_up_is_served_elsewhere(node: Node) -> None:
    at, engine = settled(node, "given-up")

    async def scene() -> Answer:
        engine.mute(1)
        began = time.monotonic()
        async with running(node, "quiet", "given-up", stream=True, X_Session_Id="given-up"):
            assert has(engine, "given-up"), "a session stays where it was"
            await soon(lambda: time.monotonic() - began > 0.9 * PATIENCE, "longer than was predicted")
        await soon(lambda: "running" not in node.slots("quiet"), "its client has left, and another slot is free there")
        return await ask(node, chat("quiet"), headers=[("X-Session-Id", "given-up")])

    assert backend(asyncio.run(scene())) == 1 - at


def test_a_client_that_leaves_early_proves_nothing(node: Node) -> None:
    at, engine = settled(node, "early")

    async def scene() -> Answer:
        engine.mute(1)
        async with running(node, "quiet", "early", stream=True, X_Session_Id="early"):
            assert has(engine, "early")
        await soon(lambda: node.idle("quiet"), "its client has left")
        return await ask(node, chat("quiet"), headers=[("X-Session-Id", "early")])

    assert backend(asyncio.run(scene())) == at


def test_a_plain_request_waits_for_an_engine_that_works(node: Node) -> None:
    at, _ = settled(node, "long")
    steps = script(("wait", 1.5 * PATIENCE), ("json", 200, "{}"))
    assert backend(asyncio.run(ask(node, chat("quiet", steps), headers=[("X-Session-Id", "long")]))) == at


def test_a_plain_request_goes_elsewhere_when_its_engine_says_that_it_does_nothing(node: Node) -> None:
    at, engine = settled(node, "lazy")
    engine.mute(1)
    engine.tell({"slots": SLOTS, "busy": 0, "each": [{"id": number, "busy": False} for number in range(SLOTS)]})
    given = [("X-Session-Id", "lazy"), ("X-Request-Id", "lazy")]
    assert backend(asyncio.run(ask(node, chat("quiet"), headers=given))) == 1 - at
    assert has(engine, "lazy")


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
            asked = [count for engine in both for count in (engine.probes, engine.reports)]
            before = [count() for count in asked]
            for cycle in range(1, 4):
                for count, so_far in zip(asked, before, strict=True):
                    await soon(lambda c=count, s=so_far: c() >= s + cycle, "it was asked")  # type: ignore[misc]  # noqa: B023  # awaited at once
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


@pytest.mark.parametrize("at_once", [2, 3 * SLOTS])
def test_a_backend_that_fails_fast_does_not_draw_the_requests(node: Node, at_once: int) -> None:
    """It looks idle because it refuses at once, the more so when the other is full. At most one in ten may try it."""
    first, _ = engines(node, "twins")
    before = len(first.seen())
    first.refuse(*[503] * 1000)

    async def scene() -> list[Answer]:
        body = chat("twins", script(("wait", 0.02), ("json", 200, "{}")))
        answers: list[Answer] = []
        while len(answers) < 100:
            answers += await asyncio.gather(*(ask(node, body) for _ in range(at_once)))
        return answers

    assert {backend(answer) for answer in asyncio.run(scene())} == {1}
    assert len(first.seen()) - before <= 10
    first.refuse()
    until(lambda: backend(asyncio.run(ask(node, chat("twins")))) == 0, "it is trusted again once it serves")


def test_a_backend_that_answers_nothing_but_errors_does_not_draw_the_requests(node: Node) -> None:
    first, _ = engines(node, "twins")
    before = len(first.seen())
    first.refuse(*[500] * 1000)

    async def scene() -> list[Answer]:
        body = chat("twins", script(("wait", 0.02), ("json", 200, "{}")))
        return [await ask(node, body) for _ in range(100)]

    answers = asyncio.run(scene())
    assert sum(answer.status == 500 for answer in answers) == len(first.seen()) - before <= 10


def test_a_client_that_is_wrong_is_not_held_against_its_backend(node: Node) -> None:
    """A backend that is passed over would lose the session."""
    session = [("X-Session-Id", "wrong")]
    at = backend(asyncio.run(ask(node, chat("twins", FINE), headers=session)))

    async def scene() -> list[Answer]:
        bodies = [chat("twins", script(("json", status, "{}"))) for status in (400, 404, 413, 422) * 3]
        return [await ask(node, body, headers=session) for body in bodies]

    answers = asyncio.run(scene())
    assert [answer.status for answer in answers] == [400, 404, 413, 422] * 3
    assert {answer.headers["x-viiwork-backend"] for answer in answers} == {f"twins/{at}"}
    assert backend(asyncio.run(ask(node, chat("twins", FINE), headers=session))) == at


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


# Models that are dead for good


def test_a_model_whose_backends_are_all_dead_is_refused_at_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whoever waits when it dies is told as well, and everybody reads the engine's last words."""
    config = {
        "routing": {"queue_timeout": "60s"},
        "health": {"max_respawns": 1},
        "models": [model("doomed", args=["--no-such-option"]), model("fine", first_byte_timeout="90s")],
    }
    with started("dead", tmp_path_factory.mktemp("node") / "dead", config, healthy=False) as node:

        def refused() -> Answer:
            answer = asyncio.run(ask(node, chat("doomed")))
            assert (answer.status, answer.error["code"]) == (503, "model_not_served")
            assert 'model "doomed" has failed on dead: ' in answer.error["message"]
            assert "unrecognized arguments: --no-such-option" in answer.error["message"]
            assert "viiwork up doomed" in answer.error["message"]
            return answer

        refused()
        until(lambda: node.model("doomed")["backends"][0]["status"] == "dead", "it is dead")
        assert int(refused().headers.get("x-viiwork-queued-ms", "0")) == 0
        about, fine = node.get("/v1/capacity")["models"]
        assert (about["backends"], about["healthy_backends"], about["dead_backends"]) == (1, 0, 1)
        assert (fine.get("dead_backends"), fine["first_byte_s"]) == (None, 90.0)
        until(lambda: asyncio.run(ask(node, chat("fine"))).status == 200, "the other one is none the worse")
