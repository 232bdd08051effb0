"""What clients together may take of the node: connections, and memory for what they send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from http_node import Node, ask, chat, connected, model, script, soon, started, until

MOST = 8
BUDGET = 4096


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    api = {"port": 0, "max_connections": MOST, "max_body": 3000, "max_inflight_bytes": BUDGET}
    config = {"api": api, "models": [model("scripted")], "routing": {"queue_timeout": "20s"}}
    with started("tight", tmp_path_factory.mktemp("node") / "tight", config) as node:
        yield node


def test_a_connection_too_many_is_told_so_and_the_next_one_is_served(tight: Node) -> None:
    async def scene() -> None:
        async with asyncio.timeout(30), AsyncExitStack() as stack:
            for _ in range(MOST):
                await stack.enter_async_context(connected(tight))
            answer = await ask(tight, chat("scripted"))
            assert (answer.status, answer.headers["retry-after"]) == (503, "5")
            assert answer.headers["content-type"] == "application/json"
            assert (answer.error["type"], answer.error["code"]) == ("unavailable", "too_many_connections")
            assert "api.max_connections" in answer.error["message"]
            assert not answer.broken
            await stack.aclose()
            await soon(lambda: "models" in tight.get("/v1/status"), "there is room again")
        assert (await ask(tight, chat("scripted"))).status == 200

    asyncio.run(scene())


def test_a_connection_too_many_that_says_nothing_is_closed(tight: Node) -> None:
    async def scene() -> bytes:
        async with asyncio.timeout(30), AsyncExitStack() as stack:
            for _ in range(MOST):
                await stack.enter_async_context(connected(tight))
            silent = await stack.enter_async_context(connected(tight))
            return await silent.reader.read()

    said = asyncio.run(scene())
    until(lambda: "models" in tight.get("/v1/status"), "there is room again")
    assert said.startswith(b"HTTP/1.1 503 ")
    assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["code"] == "too_many_connections"


def test_bodies_over_the_budget_are_refused_until_one_is_done(tight: Node) -> None:
    async def scene() -> None:
        held = chat("scripted", script(("gate", "b"), ("json", 200, "{}")), pad="x" * 2000)
        small = chat("scripted", pad="x" * 100)
        first = asyncio.ensure_future(ask(tight, held))
        await soon(lambda: tight.model("scripted")["busy"] == 1, "it runs")
        answer = await ask(tight, chat("scripted", pad="x" * 2500), headers=[("X-Request-Id", "too-much")])
        assert (answer.status, answer.headers["retry-after"]) == (429, "2")
        assert (answer.error["type"], answer.error["code"]) == ("rate_limit", "bodies_full")
        assert "api.max_inflight_bytes" in answer.error["message"]
        event = await asyncio.to_thread(tight.heard, "request", request_id="too-much")
        assert event["status"] == 429
        assert event["reason"] == f"the bodies of all requests are at the limit of {BUDGET} bytes"
        assert (await ask(tight, small)).status == 200, "a smaller one still has room"
        tight.engine("scripted").open("b")
        assert (await first).status == 200
        assert (await ask(tight, chat("scripted", pad="x" * 2500))).status == 200

    asyncio.run(scene())


def test_what_waits_in_line_counts_as_well(tight: Node) -> None:
    async def scene() -> None:
        held = chat("scripted", script(("gate", "w"), ("json", 200, "{}")), pad="x" * 800)
        running = [asyncio.ensure_future(ask(tight, held)) for _ in range(3)]
        await soon(lambda: tight.model("scripted")["queued"] == 1, "one waits")
        assert (await ask(tight, chat("scripted", pad="x" * 2000))).status == 429
        tight.engine("scripted").open("w")
        assert [(await one).status for one in running] == [200] * 3

    asyncio.run(scene())


def test_a_client_that_leaves_while_it_sends_gives_its_bytes_back(tight: Node) -> None:
    async def scene() -> None:
        async with asyncio.timeout(30), connected(tight) as client:
            head = "POST /v1/chat/completions HTTP/1.1\r\nHost: node\r\nContent-Length: 2900\r\n\r\n"
            await client.send(head.encode() + b"x" * 2800)
            await soon(lambda: in_flight(tight) > 2000, "most of it has come")
            client.leave()
            await soon(lambda: in_flight(tight) == 0, "it is forgotten")

    asyncio.run(scene())


def in_flight(node: Node) -> float:
    text = asyncio.run(ask(node, b"", path="/metrics", method="GET")).body.decode()
    line = next(line for line in text.splitlines() if line.startswith("viiwork_inflight_body_bytes "))
    return float(line.split()[1])
