"""A client that leaves ends the engine's work within a second, wherever its request is."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from http_node import Answer, Client, Node, ask, chat, connected, script, soon, streamed

WITHIN = 1.0
"""Seconds in which the engine must see that its client left."""

FIRST = b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'


def noted(node: Node, rid: str, model: str = "scripted") -> dict[str, Any]:
    """What the engine saw of a request."""
    return next(one for one in node.engine(model).seen() if ["x-request-id", rid] in one["headers"])


async def begun(node: Node, client: Client, rid: str, body: bytes, model: str = "scripted") -> None:
    """Send a request, and wait until the engine has it."""
    await client.ask(body, headers=[("X-Request-Id", rid)])
    await soon(
        lambda: any(["x-request-id", rid] in one["headers"] for one in node.engine(model).seen()), f"{rid} arrives"
    )


async def left(node: Node, rid: str, at: float, model: str = "scripted") -> None:
    """The engine sees it in time, the log says so, and the slot comes free."""
    note = await soon(lambda: (one := noted(node, rid, model))["left"] and one, f"the engine sees {rid} leave")
    assert note["left"] - at < WITHIN
    event = await asyncio.to_thread(node.heard, "request", request_id=rid)
    assert (event["status"], event["reason"]) == (499, "the client left")
    await soon(lambda: node.idle(model), "the slot is free again")


PLAIN_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n"


@pytest.mark.parametrize("kind", ["scripted", "scripted-plain", "scripted-done", "scripted-usage"])
@pytest.mark.parametrize(
    ("case", "steps", "pieces"),
    [
        ("streamed-before", script(("hold",)), None),
        ("streamed-after", script(("stream",), ("chunk", FIRST), ("hold",)), 1),
        ("streamed-head", script(("stream",), ("hold",)), 0),
        ("plain-before", script(("hold",)), None),
        ("plain-after", script(("raw", PLAIN_HEAD + b'{"a":'), ("hold",)), 1),
    ],
)
def test_the_engine_sees_that_its_client_left(
    node: Node, kind: str, case: str, steps: list[list[Any]], pieces: int | None
) -> None:
    rid = f"{case}-{kind}"

    async def scene() -> None:
        async with connected(node) as client:
            await begun(node, client, rid, chat(kind, steps, stream=case.startswith("streamed")), kind)
            if pieces is not None:
                await client.read(await client.answer(), pieces)
            at = client.leave()
        await left(node, rid, at, kind)

    asyncio.run(scene())


def test_the_slot_stays_closed_until_the_engine_says_it_is_idle(node: Node) -> None:
    async def scene() -> None:
        engine = node.engine("scripted")
        async with connected(node) as client:
            await begun(node, client, "lingers", chat("scripted", script(("hold",))))
            busy = {"slots": 2, "busy": 1, "each": [{"id": n, "busy": True} for n in range(2)]}
            engine.tell(busy)
            client.leave()
        try:
            await soon(lambda: "aborting" in node.slots("scripted"), "the slot is aborting")
            await soon(lambda: node.model("scripted")["busy"] == 2, "and the other one somebody else's")
            refused = await ask(node, chat("scripted"))
            assert refused.status == 429
        finally:
            engine.tell(None)
        await soon(lambda: node.idle("scripted"), "the slot is free again")

    asyncio.run(scene())


def test_a_client_that_leaves_the_queue_is_forgotten(node: Node) -> None:
    async def scene() -> None:
        holders = [asyncio.ensure_future(ask(node, chat("scripted", script(("gate", "q"), *DONE)))) for _ in range(2)]
        await soon(lambda: node.model("scripted")["busy"] == 2, "both slots are taken")
        async with connected(node) as client:
            await client.ask(chat("scripted"), headers=[("X-Request-Id", "queued")])
            await soon(lambda: node.model("scripted")["queued"] == 1, "it waits")
            client.leave()
            await soon(lambda: node.model("scripted")["queued"] == 0, "it waits no longer")
        event = await asyncio.to_thread(node.heard, "request", request_id="queued")
        assert (event["status"], event["backend"]) == (499, None)
        assert event["queued_ms"] > 0
        node.engine("scripted").open("q")
        assert [(await one).status for one in holders] == [200, 200]

    asyncio.run(scene())
    assert not any(["x-request-id", "queued"] in one["headers"] for one in node.engine("scripted").seen())


DONE = (("json", 200, "{}"),)


def test_a_queued_client_that_leaves_disturbs_nobody(node: Node) -> None:
    """Its neighbours' streams go on, and it never reaches the engine."""

    async def scene() -> None:
        steps = script(("stream",), ("chunk", FIRST), ("gate", "n"), ("chunk", FIRST), ("end",))
        async with connected(node) as one, connected(node) as other, connected(node) as queued:
            answers: list[Answer] = []
            for client in (one, other):
                await client.ask(chat("scripted", steps, stream=True))
                answers.append(await client.read(await client.answer(), 1))
            await queued.ask(chat("scripted"))
            await soon(lambda: node.model("scripted")["queued"] == 1, "it waits")
            queued.leave()
            await soon(lambda: node.model("scripted")["queued"] == 0, "it waits no longer")
            node.engine("scripted").open("n")
            for client, answer in zip((one, other), answers, strict=True):
                await client.read(answer)
                assert (answer.body, answer.broken) == (FIRST * 2, False)

    asyncio.run(scene())


def test_many_clients_come_and_leave_and_every_slot_is_free_in_the_end(node: Node) -> None:
    """At any moment: in the queue, at its end, before the first byte and after it."""

    async def client(number: int) -> None:
        async with connected(node) as one:
            steps = script(("wait", 0.01), ("stream",), ("chunk", FIRST), ("wait", 0.01), ("end",))
            await one.ask(chat("scripted", steps, stream=True))
            await asyncio.sleep(number % 10 * 0.004)  # the moment at which it leaves, not a wait for something
            one.leave()

    async def scene() -> None:
        for start in range(0, 120, 6):
            await asyncio.gather(*(client(number) for number in range(start, start + 6)))

    asyncio.run(scene())


def test_a_fragile_engine_is_read_to_its_end(node: Node) -> None:
    async def scene() -> None:
        steps = script(("stream",), ("chunk", FIRST), ("gate", "d"), ("chunk", FIRST), ("end",))
        async with connected(node) as client:
            await begun(
                node, client, "drained", chat("scripted-draining", steps, stream=True), model="scripted-draining"
            )
            await client.read(await client.answer(), 1)
            client.leave()
        event = await asyncio.to_thread(node.heard, "request", request_id="drained")
        assert event["status"] == 499
        assert node.model("scripted-draining")["busy"] == 1, "its slot is not free before it has ended"
        assert noted(node, "drained", "scripted-draining")["left"] is None
        node.engine("scripted-draining").open("d")
        await soon(lambda: noted(node, "drained", "scripted-draining")["done"], "the engine may end in peace")

    asyncio.run(scene())


def test_a_client_that_leaves_while_it_sends(node: Node) -> None:
    async def scene() -> None:
        async with connected(node) as client:
            head = (
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: node\r\nX-Request-Id: half\r\nContent-Length: 100\r\n\r\n"
            )
            await client.send(head + b'{"model": "scr')
            client.leave()
        event = await asyncio.to_thread(node.heard, "request", request_id="half")
        assert (event["status"], event["reason"]) == (499, "the client left while sending")

    asyncio.run(scene())


def test_a_client_that_leaves_after_its_answer_has_left_nothing_undone(node: Node) -> None:
    async def scene() -> None:
        async with connected(node) as client:
            await client.ask(chat("scripted", streamed(FIRST), stream=True), headers=[("X-Request-Id", "stayed")])
            answer = await client.read(await client.answer())
            client.leave()
        assert (answer.status, answer.broken) == (200, False)
        event = await asyncio.to_thread(node.heard, "request", request_id="stayed")
        assert event["status"] == 200

    began = time.monotonic()
    asyncio.run(scene())
    assert noted(node, "stayed")["at"] > began
    assert noted(node, "stayed")["done"]
