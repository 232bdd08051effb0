"""A node with Strata's double, configured as a user does it, and OpenAI's own client."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest
from callers import client
from http_node import CHAT, Node, ask, chat, connected, model, started, until

pytest.importorskip("viiwork_strata", reason="the strata plugin is not installed")

from viiwork_strata.testing import CHECKOUT, write_config  # after the skip
from viiwork_strata.testing.settings import VERSION

pytestmark = pytest.mark.slow

HELLO: Any = [{"role": "user", "content": "hello, which of you is here?"}]
QUICK = {"interval": "0.2s", "max_failures": 2, "max_respawns": 20}


def strata(folder: Path, name: str, gpu: int, *args: str, warmup: str = "0s", **more: Any) -> dict[str, Any]:
    """A model's entry, with the JSON that it names. `args` are the double's."""
    home = folder / name
    home.mkdir(parents=True)
    slots = more.setdefault("parallel", 1)
    path = write_config(home, name, **({"parallel": slots} if slots > 1 else {}), **more.pop("config", {}))
    options = {"dir": str(CHECKOUT), "python": sys.executable, "warmup": warmup}
    return model(name, "strata", path=str(path), gpus=[gpu], args=list(args), strata=options, **more)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    folder = tmp_path_factory.mktemp("strata")
    models = [
        strata(folder, "fine", 0),
        strata(folder, "dies", 1, "--die-after", "3"),
        strata(folder, "dies-first", 2, "--die-after", "0"),
        strata(folder, "crashes", 3, "--crash-after", "3"),
        strata(folder, "pair", 4, "--token-seconds", "0.05", parallel=2),
    ]
    config = {"models": models, "health": QUICK, "routing": {"queue_timeout": "30s"}}
    with started("one", folder / "one", config, plugins="strata") as node:
        yield node


def backend(node: Node, name: str) -> dict[str, Any]:
    (found,) = node.model(name)["backends"]
    return dict(found)


def healthy(node: Node, name: str) -> None:
    """Wait for its backend, which an earlier test may have killed."""
    until(lambda: backend(node, name)["status"] == "healthy", f"{name} is healthy", 100)


def test_a_plain_and_a_streamed_chat(node: Node) -> None:
    healthy(node, "fine")
    with client(node) as api:
        plain = api.chat.completions.create(model="fine", messages=HELLO, temperature=0)
        stream = api.chat.completions.create(model="fine", messages=HELLO, temperature=0, stream=True)
        chunks = list(stream)
    assert plain.choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == plain.choices[0].message.content
    assert chunks[-1].usage is not None
    assert plain.usage is not None
    assert chunks[-1].usage.prompt_tokens == plain.usage.prompt_tokens
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_the_engine_s_version_is_shown(node: Node) -> None:
    healthy(node, "fine")
    until(lambda: node.model("fine").get("engine_version") == VERSION, "the node shows the version")


def test_an_engine_that_dies_in_a_stream_is_an_error_for_the_client(node: Node) -> None:
    healthy(node, "dies")
    with client(node) as api:
        stream = api.chat.completions.create(model="dies", messages=HELLO, stream=True)
        got: list[str] = []
        with pytest.raises(openai.APIError, match="the engine ended unexpectedly; the next request restarts it"):
            got.extend(chunk.choices[0].delta.content or "" for chunk in stream)
    assert not [event for event in node.events("request", model="dies") if event["status"] != 502]


def test_done_after_an_engine_s_death_is_not_passed_on(node: Node) -> None:
    healthy(node, "dies")
    pid = backend(node, "dies")["pid"]
    headers = [("X-Request-Id", "death")]
    answer = asyncio.run(ask(node, chat("dies", stream=True), headers=headers))
    assert (answer.status, answer.broken) == (200, True)
    assert answer.body.rstrip().endswith(b"}}")
    assert b'data: {"error": {"type": "server_error"' in answer.body
    assert b"[DONE]" not in answer.body
    event = node.heard("request", request_id="death")
    assert event["status"] == 502
    assert event["reason"] == "the engine failed"
    # The server is up and its engine is not: the node notices, and starts it anew.
    until(lambda: backend(node, "dies").get("pid") not in (None, pid), "another process runs", 90)
    reasons = [event["reason"] for event in node.events("a backend is started again", backend="dies/0")]
    assert any("no model loaded" in reason for reason in reasons)


def test_an_engine_that_dies_before_its_answer_is_a_refusal(node: Node) -> None:
    """It would take minutes to start again: elsewhere there may be room."""
    healthy(node, "dies-first")
    answer = asyncio.run(ask(node, chat("dies-first"), headers=[("X-Request-Id", "early")]))
    assert (answer.status, answer.error["code"]) == (503, "no_capacity")
    assert node.heard("request", request_id="early")["status"] == 503


def test_a_server_that_dies_in_a_stream_is_a_cut(node: Node) -> None:
    healthy(node, "crashes")
    answer = asyncio.run(ask(node, chat("crashes", stream=True), headers=[("X-Request-Id", "crash")]))
    assert (answer.status, answer.broken) == (200, True)
    assert b'"content": "' in answer.body
    assert b"[DONE]" not in answer.body
    event = node.heard("request", request_id="crash")
    assert (event["status"], event["reason"]) == (502, "the stream ended without [DONE]")
    healthy(node, "crashes")
    with client(node) as api:
        stream = api.chat.completions.create(model="crashes", messages=HELLO, stream=True)
        with pytest.raises((openai.APIError, httpx.RemoteProtocolError)):
            list(stream)


def test_two_slots_serve_two_at_a_time(node: Node) -> None:
    """Which slot a request gets is Strata's choice: its report must not close the other one."""
    healthy(node, "pair")
    most: list[int] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            most.append(node.slots("pair").count("running"))

    watcher = threading.Thread(target=watch)
    watcher.start()

    async def scene() -> list[int]:
        return [answer.status for answer in await asyncio.gather(*(ask(node, chat("pair")) for _ in range(4)))]

    try:
        assert asyncio.run(scene()) == [200] * 4
    finally:
        done.set()
        watcher.join()
    assert max(most) == 2
    until(lambda: node.idle("pair"), "both slots come free")


def test_a_client_that_leaves_ends_its_request(node: Node) -> None:
    healthy(node, "pair")

    async def scene() -> None:
        async with connected(node) as caller:
            await caller.ask(chat("pair", stream=True), path=CHAT)
            await caller.read(await caller.answer(), pieces=2)
            caller.leave()

    asyncio.run(scene())
    until(lambda: node.idle("pair"), "its slot comes free")
    assert backend(node, "pair")["status"] == "healthy"


def test_a_json_that_disagrees_is_a_dead_backend_with_the_key(tmp_path: Path) -> None:
    entry = strata(tmp_path, "tiny", 0, config={"lazy_load": True})
    with started("one", tmp_path / "one", {"models": [entry]}, plugins="strata", healthy=False) as node:
        until(lambda: backend(node, "tiny")["status"] == "dead", "it is dead")
        reason = node.heard("a backend is dead", backend="tiny/0")["reason"]
    assert reason.startswith("model tiny: lazy_load: is true in ")


def test_it_loads_and_warms_up_before_it_is_healthy(tmp_path: Path) -> None:
    entry = strata(tmp_path, "tiny", 0, "--load-seconds", "1", warmup="1s")
    with started("one", tmp_path / "one", {"models": [entry]}, plugins="strata", healthy=False) as node:
        phases: list[str | None] = []

        def is_healthy() -> bool:
            now = backend(node, "tiny")
            if now.get("phase") not in phases[-1:]:
                phases.append(now.get("phase"))
            return bool(now["status"] == "healthy")

        until(is_healthy, "it is healthy", 60)
    assert [phase for phase in phases if phase][-2:] == ["loading", "warming up"]


def test_an_end_that_takes_long_is_waited_for(tmp_path: Path) -> None:
    """Longer than the node waits for other engines, which are killed after 7 s."""
    entry = strata(tmp_path, "tiny", 0, "--stop-seconds", "8")
    with started("one", tmp_path / "one", {"models": [entry]}, plugins="strata") as node:
        engine = psutil.Process(backend(node, "tiny")["pid"])
    assert node.process.returncode == 0
    assert not engine.is_running()
    assert "[tiny/0] [strata] stopping the engine" in node.log()
    assert "[tiny/0] [strata] the engine has stopped" in node.log()
