"""Whoever finds no room waits in line, for a while."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from http_node import QUEUE_MAX, Answer, Node, ask, chat, script, soon, streamed

HOLD = "queue-{}"


async def holders(node: Node, gate: str, number: int = 2) -> list[asyncio.Future[Answer]]:
    """Requests that take the slots until the gate opens."""
    body = chat("scripted", script(("gate", gate), ("json", 200, "{}")))
    held = [asyncio.ensure_future(ask(node, body)) for _ in range(number)]
    await soon(lambda: node.model("scripted")["busy"] == number, "the slots are taken")
    return held


def test_a_request_waits_for_a_slot_and_says_how_long(node: Node) -> None:
    async def scene() -> None:
        held = await holders(node, "waits")
        waiting = asyncio.ensure_future(ask(node, chat("scripted"), headers=[("X-Request-Id", "waits")]))
        await soon(lambda: node.model("scripted")["queued"] == 1, "it waits")
        node.engine("scripted").open("waits")
        answers = [await one for one in (*held, waiting)]
        assert [one.status for one in answers] == [200] * 3
        waits = [int(one.headers["x-viiwork-queued-ms"]) for one in answers]
        assert waits[:2] == [0, 0]
        assert waits[2] > 0
        event = await asyncio.to_thread(node.heard, "request", request_id="waits")
        assert event["queued_ms"] == waits[2]

    asyncio.run(scene())


def test_a_request_for_which_no_slot_comes_free_is_told_so(node: Node) -> None:
    async def scene() -> None:
        held = await holders(node, "late")
        answer = await ask(node, chat("scripted"), headers=[("X-Request-Id", "late")])
        assert (answer.status, answer.headers["retry-after"]) == (429, "2")
        assert answer.error["message"] == "no free slot for scripted within 1s"
        assert answer.error["type"] == "rate_limit"
        event = await asyncio.to_thread(node.heard, "request", request_id="late")
        assert (event["status"], event["backend"]) == (429, None)
        assert event["queued_ms"] >= 900
        node.engine("scripted").open("late")
        assert [(await one).status for one in held] == [200, 200]

    asyncio.run(scene())


async def patient(node: Node, body: bytes, headers: list[tuple[str, str]]) -> Answer:
    """An answer, asked for again where the queue's time was up: on a busy machine it may be before anybody looked."""
    while (answer := await ask(node, body, headers=headers)).status == 429:
        pass
    return answer


def test_status_tells_who_waits_and_since_when(node: Node) -> None:
    async def scene() -> None:
        held = await holders(node, "told")
        named = [("X-Request-Id", "told")]
        waiting = asyncio.ensure_future(patient(node, chat("scripted"), named))
        (entry,) = await soon(lambda: node.model("scripted").get("queue"), "it waits")
        assert (entry["request_id"], entry["position"]) == ("told", 1)
        assert 0 <= entry["waited_s"] <= 1
        node.engine("scripted").open("told")
        assert [(await one).status for one in (*held, waiting)] == [200] * 3
        assert "queue" not in node.model("scripted")

    asyncio.run(scene())


def test_a_full_queue_says_so_at_once(node: Node) -> None:
    async def scene() -> None:
        held = await holders(node, "full")
        waiting = [asyncio.ensure_future(ask(node, chat("scripted"))) for _ in range(QUEUE_MAX)]
        await soon(lambda: node.model("scripted")["queued"] == QUEUE_MAX, "the queue is full")
        answer = await ask(node, chat("scripted"))
        assert (answer.status, answer.headers["retry-after"]) == (429, "2")
        assert answer.error == {
            "message": "queue for scripted is full",
            "type": "rate_limit",
            "code": "queue_full",
            "src": "viiwork",
        }
        node.engine("scripted").open("full")
        assert [(await one).status for one in (*held, *waiting)] == [200] * (2 + QUEUE_MAX)

    asyncio.run(scene())


def test_a_full_model_is_no_obstacle_to_another(node: Node) -> None:
    async def scene() -> None:
        held = await holders(node, "other")
        waiting = asyncio.ensure_future(ask(node, chat("scripted")))
        await soon(lambda: node.model("scripted")["queued"] == 1, "it waits")
        answer = await ask(node, chat("scripted-plain"))
        assert (answer.status, answer.headers["x-viiwork-queued-ms"]) == (200, "0")
        node.engine("scripted").open("other")
        assert [(await one).status for one in (*held, waiting)] == [200] * 3

    asyncio.run(scene())


def test_an_engine_is_never_handed_more_than_it_has_slots(node: Node) -> None:
    """Two hundred at once over two slots: each gets an honest answer."""

    async def scene() -> list[Answer]:
        steps = script(("wait", 0.005), ("stream",), ("chunk", b"data: [DONE]\n\n"), ("end",))
        body = chat("scripted-done", steps, stream=True)
        return await asyncio.gather(*(ask(node, body) for _ in range(200)))

    answers = asyncio.run(scene())
    counted = Counter(answer.status for answer in answers)
    assert set(counted) == {200, 429}
    assert counted[200] >= 2
    for answer in answers:
        assert not answer.broken
        if answer.status == 200:
            assert answer.body == b"data: [DONE]\n\n"
        else:
            assert answer.error["code"] in ("queue_full", "no_free_slot")
            assert answer.headers["retry-after"] == "2"
    assert node.engine("scripted-done").most_at_once() <= 2


@pytest.mark.parametrize("number", [3, 50])
def test_a_request_heavier_than_the_engine_takes_it_whole(node: Node, number: int) -> None:
    async def scene() -> None:
        steps = script(("gate", f"heavy{number}"), ("json", 200, "{}"))
        heavy = asyncio.ensure_future(ask(node, chat("scripted", steps, n=number)))
        await soon(lambda: node.slots("scripted") == ["running"] * 2, "it has both slots")
        node.engine("scripted").open(f"heavy{number}")
        assert (await heavy).status == 200

    asyncio.run(scene())


def test_streams_end_and_slots_are_free_before_the_next_question(node: Node) -> None:
    """Whoever has read the end of an answer finds its slot free."""

    async def scene() -> None:
        for _ in range(30):
            both = [ask(node, chat("scripted", streamed(b"data: [DONE]\n\n"), stream=True)) for _ in range(2)]
            answers = await asyncio.gather(*both)
            assert {one.headers["x-viiwork-queued-ms"] for one in answers} == {"0"}

    asyncio.run(scene())
