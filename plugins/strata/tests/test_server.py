"""The engine and the double, over HTTP."""

from __future__ import annotations

import json
import socket
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import httpx
import pytest

from viiwork_core import Address, Context, EngineRefused, EngineUnreachable, SlotLoad, Spec, StreamEnd, UsageSource
from viiwork_strata.engine import StrataEngine
from viiwork_strata.testing import write_config

from .conftest import OPTIONS, Running, Start, answers, end, free_port, spawn, until, until_ready

pytestmark = pytest.mark.anyio
HELLO = [{"role": "user", "content": "hello, which of you is here?"}]


def test_the_wire_says_how_strata_speaks() -> None:
    """Strata: "HTTP/1.0, every response carries Connection: close"; "LAST chunk ... always usage"; "a stream cut by
    server death looks complete unless [DONE] is checked"."""
    wire = StrataEngine.wire
    assert (wire.keep_alive, wire.usage, wire.stream_end) == (False, UsageSource.UNASKED, StreamEnd.DONE)
    assert wire.endpoints == {"/v1/chat/completions"}


async def test_the_port_is_closed_until_the_model_is_loaded(tmp_path: Path, context: Context) -> None:
    """Strata: "while loading the port is CLOSED (connection refused)"."""
    path = write_config(tmp_path, "tiny")
    spec = Spec("tiny", 0, 1, path, 4096, 1, port=free_port(), args=("--load-seconds", "0.5"))
    address = Address(spec.host, spec.port)
    async with StrataEngine(OPTIONS, context) as engine:
        process = spawn(engine, spec)
        try:
            with pytest.raises(EngineUnreachable, match="did not answer GET /health"):
                await engine.probe(address)
            await until_ready(engine, address)
        finally:
            end(process)
        assert not await answers(engine, address)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ('{"status": "ok", "loaded": true}', "not a Strata server"),
        ("busy", "not a Strata server"),
        ('{"status": "ok", "service": "strata", "loaded": false}', "no model loaded"),
        ('{"status": "ok", "service": "strata"}', "no model loaded"),
        ('{"status": "down", "service": "strata", "loaded": true}', "'down'"),
    ],
)
async def test_readiness_takes_service_status_and_loaded(context: Context, body: str, reason: str) -> None:
    """Strata: "GET /health must be 200 with service "strata", status "ok", loaded true (missing loaded = not
    ready)"."""

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(f"HTTP/1.0 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    async with listener, anyio.create_task_group() as group, StrataEngine(OPTIONS, context) as engine:
        group.start_soon(listener.serve, serve)
        probe = await engine.probe(Address("127.0.0.1", port))
        group.cancel_scope.cancel()
    assert not probe.ready
    assert reason in str(probe.reason)


async def test_load_tells_slots_context_and_held_tokens(start: Start) -> None:
    """Strata: "Without batch: one entry {id 0, n_ctx, is_processing, n_prompt_tokens}", "kept after the request
    ends"."""
    a = await start("a", context=2048)
    load = await a.engine.load(a.spec, a.address)
    assert (load.slots, load.busy, load.context, load.waiting) == (1, 0, 2048, 0)
    assert load.each == (SlotLoad(0, busy=False, tokens=0),)
    usage = (await a.chat(HELLO))["usage"]
    assert isinstance(usage, dict)
    assert (await a.engine.load(a.spec, a.address)).each == (SlotLoad(0, busy=False, tokens=usage["prompt_tokens"]),)


async def test_a_running_request_is_busy_and_the_next_one_waits(start: Start) -> None:
    a = await start("a", "--token-seconds", "0.05")
    async with anyio.create_task_group() as group:
        group.start_soon(a.chat, HELLO)
        group.start_soon(a.chat, HELLO)
        await until_status(a, queued=1, busy=True)
        assert (await a.engine.load(a.spec, a.address)).busy == 1
    await until_status(a, queued=0, busy=False)


async def until_status(running: Running, **wanted: object) -> None:
    async def is_so() -> bool:
        return wanted.items() <= (await get(running.address, "/status")).items()

    await until(is_so)


async def get(address: Address, path: str) -> dict[str, object]:
    async with httpx.AsyncClient(trust_env=False) as client:
        return dict((await client.get(address.url + path)).json())


async def test_a_plain_answer_is_http_1_0_with_usage_and_timings(start: Start) -> None:
    a = await start("a")
    answer = await a.post("/v1/chat/completions", {"messages": HELLO})
    assert (answer.http_version, answer.headers["connection"]) == ("HTTP/1.0", "close")
    body = answer.json()
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}
    assert body["timings"]["prompt_n"] == body["usage"]["prompt_tokens"]
    assert b'"object": "chat.completion"' in answer.content


async def test_a_stream_has_usage_in_its_last_chunk_and_then_done(start: Start) -> None:
    """Strata: "LAST chunk has delta {}, finish_reason and always usage ... plus timings, whether or not the client
    asked. Then data: [DONE]"."""
    a = await start("a")
    answer = await a.post("/v1/chat/completions", {"messages": HELLO, "stream": True})
    assert (answer.http_version, answer.headers["content-type"]) == ("HTTP/1.0", "text/event-stream")
    events = [line.removeprefix("data: ") for line in answer.text.split("\n\n") if line.startswith("data: ")]
    assert events[-1] == "[DONE]"
    chunks = [json.loads(event) for event in events[:-1]]
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert (chunks[-1]["choices"][0]["delta"], chunks[-1]["choices"][0]["finish_reason"]) == ({}, "stop")
    assert {"usage", "timings"} <= set(chunks[-1])
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == content(await a.chat(HELLO))


def content(body: dict[str, object]) -> str:
    choices = body["choices"]
    assert isinstance(choices, list)
    return str(choices[0]["message"]["content"])


async def test_a_prompt_that_does_not_fit_is_refused(start: Start) -> None:
    """Strata: "400 invalid_request_error (also prompt+max_tokens over context: never truncated)"."""
    a = await start("a", context=64)
    answer = await a.post("/v1/chat/completions", {"messages": HELLO, "max_tokens": 60})
    assert (answer.status_code, answer.json()["error"]["type"]) == (400, "invalid_request_error")


async def test_one_different_word_early_in_the_prompt_changes_the_answer(start: Start) -> None:
    a = await start("a")
    one = await a.chat([{"role": "system", "content": "one"}, *HELLO])
    two = await a.chat([{"role": "system", "content": "two"}, *HELLO])
    assert content(one) != content(two)


async def test_a_client_that_leaves_ends_its_request(start: Start) -> None:
    a = await start("a", "--token-seconds", "0.2")
    data = json.dumps({"messages": HELLO}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
    with socket.create_connection((a.address.host, a.address.port)) as client:
        client.sendall(head.encode() + data)
        await until_status(a, phase="answering")
    await until_status(a, busy=False)
    assert (await get(a.address, "/status"))["generated"] != 24


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        ("[]", "lists no slots"),
        ('{"slots": 1}', "not a list of objects"),
        ('[{"id": 0, "is_processing": false}]', "n_ctx"),
        ('[{"id": 0, "n_ctx": 4096}]', "is_processing"),
        ('[{"id": 0, "n_ctx": -1, "is_processing": true}]', "n_ctx"),
    ],
)
async def test_a_load_that_is_not_told_is_an_error(context: Context, slots: str, words: str) -> None:
    """Strata: "errors, empty list, missing n_ctx/is_processing = error, never zero"."""

    async def serve(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            await stream.receive()
            await stream.send(f"HTTP/1.0 200 OK\r\nContent-Length: {len(slots)}\r\n\r\n{slots}".encode())

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = listener.extra(anyio.abc.SocketAttribute.local_port)
    spec = Spec("tiny", 0, 1, None, 4096, 1)
    async with listener, anyio.create_task_group() as group, StrataEngine(OPTIONS, context) as engine:
        group.start_soon(listener.serve, serve)
        with pytest.raises(EngineRefused, match=words):
            await engine.load(replace(spec, port=port), Address("127.0.0.1", port))
        group.cancel_scope.cancel()


async def test_an_answer_that_may_not_end_says_length(start: Start) -> None:
    a = await start("a")
    body = await a.chat(HELLO, max_tokens=5)
    assert len(content(body)) == 20
    assert '"finish_reason": "length"' in json.dumps(body)


@pytest.mark.parametrize(
    ("args", "config", "status"),
    [
        (["--unknown"], '{"model_name": "tiny"}', 2),
        ([], "[]", 1),
        ([], '{"args": ["--max-context=8"]}', 1),
    ],
)
async def test_the_double_ends_early_as_strata_does(tmp_path: Path, args: list[str], config: str, status: int) -> None:
    """Strata: "argparse error exit 2 (port taken, ...); bad config value -> SystemExit (exit 1)"."""
    path = tmp_path / "strata.json"
    path.write_text(config)
    argv = [sys.executable, "-m", "viiwork_strata.testing.double", "--port", str(free_port()), "--config", str(path)]
    ended = await anyio.run_process([*argv, *args], check=False)
    assert ended.returncode == status
    assert ended.stderr


async def test_a_taken_port_ends_the_double(tmp_path: Path) -> None:
    path = write_config(tmp_path, "tiny")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        argv = [sys.executable, "-m", "viiwork_strata.testing.double", "--port", port, "--config", str(path)]
        ended = await anyio.run_process(argv, check=False)
    assert (ended.returncode, b"is taken" in ended.stderr) == (2, True)
