"""The line of a request: there for each one, also for those that ended just before the node did."""

from __future__ import annotations

import asyncio
import time
from email.utils import parsedate_to_datetime
from pathlib import Path

from http_node import ask, chat, connected, model, started

MANY = 20


def test_every_request_has_its_line_when_the_node_stops(tmp_path: Path) -> None:
    """Lines are gathered for a moment, and the stop does not wait for that moment."""
    with started("one", tmp_path / "one", {"models": [model("m", "fake")]}) as node:

        async def scene() -> None:
            body = chat("m", max_tokens=1)
            asked = (ask(node, body, headers=[("X-Request-Id", f"last-{number}")]) for number in range(MANY))
            assert {answer.status for answer in await asyncio.gather(*asked)} == {200}

        asyncio.run(scene())
        node.process.terminate()
        assert node.process.wait(30) == 0
        assert {one["request_id"] for one in node.events("request")} == {f"last-{number}" for number in range(MANY)}


def test_every_answer_says_what_time_it_is(tmp_path: Path) -> None:
    with started("one", tmp_path / "one", {"models": [model("m", "fake")]}) as node:

        async def scene() -> list[float]:
            told = []
            async with asyncio.timeout(30), connected(node) as client:
                while len(set(told)) < 2:
                    await client.ask(b"", path="/health", method="GET")
                    answer = await client.read(await client.answer("GET"))
                    told.append(parsedate_to_datetime(answer.headers["date"]).timestamp())
            return told

        before = int(time.time())
        told = asyncio.run(scene())
        assert told == sorted(told)
        assert before <= told[0] <= told[-1] <= time.time()
