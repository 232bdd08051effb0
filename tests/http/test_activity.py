"""GET /v1/activity and its stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from http_node import Answer, Client, Node, ask, chat, connected, model, script, soon, started, streamed

STREAM = "/v1/activity/stream"
SECRET_WORDS = "a prompt that nobody else may read"


class Follower:
    """A client of the stream."""

    def __init__(self, client: Client, answer: Answer) -> None:
        self._client = client
        self.answer = answer
        self._taken = 0

    async def _piece(self) -> None:
        await self._client.read(self.answer, len(self.answer.pieces) + 1)

    async def event(self, **fields: Any) -> dict[str, Any]:
        """The next event that has these fields."""
        while True:
            while self._taken >= len(self.events()):
                assert not self.answer.broken
                await self._piece()
            self._taken += 1
            found = self.events()[self._taken - 1]
            if fields.items() <= found.items():
                return found

    def events(self) -> list[dict[str, Any]]:
        whole = self.answer.body.decode().split("\n\n")[:-1]
        return [json.loads(one.removeprefix("data: ")) for one in whole if not one.startswith(":")]


@asynccontextmanager
async def following(node: Node) -> AsyncIterator[Follower]:
    async with asyncio.timeout(30), connected(node) as client:
        await client.ask(b"", path=STREAM, method="GET")
        answer = await client.answer("GET")
        assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
        yield Follower(client, answer)


def test_requests_are_told_as_they_go(node: Node) -> None:
    async def scene() -> None:
        async with following(node) as follower:
            steps = script(("gate", "told"), ("json", 200, "{}"))
            asked = asyncio.ensure_future(ask(node, chat("scripted", steps), headers=[("X-Request-Id", "told")]))
            begun = await follower.event(rid="told")
            assert begun["type"] == "request"
            assert begun["message"] == "scripted → scripted/0"
            assert "replay" not in begun
            node.engine("scripted").open("told")
            assert (await asked).status == 200
            ended = await follower.event(rid="told")
            assert ended["message"].startswith("scripted → scripted/0 done (")
            assert ended["message"].endswith("s)")

    asyncio.run(scene())


def test_a_client_that_leaves_is_told_as_such(node: Node) -> None:
    async def scene() -> None:
        async with following(node) as follower:
            async with connected(node) as client:
                await client.ask(chat("scripted", script(("hold",))), headers=[("X-Request-Id", "leaver")])
                await follower.event(rid="leaver")
                client.leave()
            ended = await follower.event(rid="leaver")
            assert ended["message"].startswith("scripted → scripted/0 aborted by client (")

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("steps", "end"),
    [
        (streamed(b"data: a\n\n", end=False), "aborted"),
        (script(("cut",)), "failed"),
        (script(("json", 400, "{}")), "done"),
    ],
)
def test_how_a_request_ended(node: Node, steps: list[list[Any]], end: str) -> None:
    async def scene() -> None:
        async with following(node) as follower:
            await ask(node, chat("scripted", steps, stream=True), headers=[("X-Request-Id", f"how-{end}")])
            last = await follower.event(rid=f"how-{end}")
            while " (" not in last["message"]:
                last = await follower.event(rid=f"how-{end}")
            assert last["message"].startswith(f"scripted → scripted/0 {end} (")

    asyncio.run(scene())


def test_whoever_comes_later_is_told_what_runs_and_what_was_just_now(node: Node) -> None:
    async def scene() -> None:
        steps = script(("gate", "later"), ("json", 200, "{}"))
        asked = asyncio.ensure_future(ask(node, chat("scripted", steps), headers=[("X-Request-Id", "later")]))
        async with following(node) as first:
            await first.event(rid="later")
        async with following(node) as second:
            event = await second.event(rid="later")
            assert event["replay"] is True
            node.engine("scripted").open("later")
            await asked
            assert "replay" not in await second.event(rid="later")

    asyncio.run(scene())


def test_the_log_has_everything_and_no_prompt(node: Node) -> None:
    async def scene() -> None:
        body = chat("scripted", messages=[{"role": "user", "content": SECRET_WORDS}], user=SECRET_WORDS)
        await ask(node, body, headers=[("X-Request-Id", "kept")])
        await ask(node, chat("nobody-serves-this"), headers=[("X-Request-Id", "unknown")])
        answer = await ask(node, b"", path="/v1/activity", method="GET")
        events = json.loads(answer.body)["events"]
        assert [one["message"].split(" (")[0] for one in events if one.get("rid") == "kept"] == [
            "scripted → scripted/0",
            "scripted → scripted/0 done",
        ]
        assert [one for one in events if one.get("rid") == "unknown"] == []
        assert {"type": "backend", "message": "scripted/0 healthy"}.items() <= next(
            one for one in events if one["message"] == "scripted/0 healthy"
        ).items()
        assert "one is up" in [one["message"] for one in events if one["type"] == "system"]
        assert SECRET_WORDS.encode() not in answer.body
        assert b"nobody-serves-this" not in answer.body

    asyncio.run(scene())


def test_who_follows_and_leaves_makes_room(node: Node) -> None:
    """Seventeen in a row, and the first that stays is still told."""

    async def scene() -> None:
        async with following(node) as stays:
            for _ in range(17):
                async with following(node) as one:
                    await one._piece()
            await ask(node, chat("scripted"), headers=[("X-Request-Id", "after-17")])
            await stays.event(rid="after-17")

    asyncio.run(scene())


def test_the_longest_follower_gives_way(node: Node) -> None:
    async def scene() -> None:
        async with following(node) as oldest:
            await oldest._piece()
            others = [connected(node) for _ in range(16)]
            clients = [await other.__aenter__() for other in others]
            try:
                for client in clients:
                    await client.ask(b"", path=STREAM, method="GET")
                    await client.answer("GET")
                # Not a clean end: it has missed something, and comes again.
                await oldest._client.read(oldest.answer)
                assert oldest.answer.broken
            finally:
                for other in others:
                    await other.__aexit__(None, None, None)

    asyncio.run(scene())


@pytest.mark.parametrize("path", [STREAM, "/v1/activity", "/metrics", "/v1/model/info", "/api.json", "/v1/capacity"])
def test_what_is_read_may_be_asked_for_its_head_and_nothing_else(node: Node, path: str) -> None:
    async def scene() -> None:
        async with asyncio.timeout(10), connected(node) as client:
            await client.ask(b"", path=path, method="HEAD")
            answer = await client.read(await client.answer("HEAD"))
            assert (answer.status, answer.body, answer.broken) == (200, b"", False)
            await client.ask(b"{}", path=path)
            answer = await client.read(await client.answer())
            assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")

    asyncio.run(scene())


def test_streams_end_with_the_node_and_do_not_hold_it_up(tmp_path: Path) -> None:
    with started("ends", tmp_path / "ends", {"models": [model("scripted")]}) as node:

        async def scene() -> None:
            async with following(node) as follower:
                await follower.event(message="ends is up")
                node.process.terminate()
                await follower.event(message="ends stops")
                await follower._client.read(follower.answer)
                assert not follower.answer.broken
                # health.respawn_grace, for which running requests may hold it up, is a minute.
                await soon(lambda: node.process.poll() is not None, "the node has ended")
                assert node.process.returncode == 0

        asyncio.run(scene())
