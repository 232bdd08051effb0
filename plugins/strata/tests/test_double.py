"""The double in every state, with the fact sheet's words beside each."""

from __future__ import annotations

import json
import signal
import sys
import threading
from functools import partial
from pathlib import Path

import anyio
import anyio.to_thread
import httpx
import pytest

from viiwork_core import Address, Context, EngineRefused, EngineUnreachable, Spec
from viiwork_strata.engine import StrataEngine
from viiwork_strata.testing import write_config
from viiwork_strata.testing.fifo import Fifo

from .conftest import OPTIONS, SESSION, Running, Start, free_port, piped, spawn, until, until_ready

pytestmark = pytest.mark.anyio
CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello, which of you is here?"}]
LONG = [{"role": "user", "content": "a conversation of some length " * 20}]


async def get(running: Running, path: str, **headers: str) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        return await client.get(running.address.url + path, headers=headers)


async def events(running: Running, **body: object) -> list[str]:
    """A stream's lines, comments among them."""
    answer = await running.post(CHAT, {"messages": HELLO, "stream": True, **body})
    return [line for line in answer.text.split("\n\n") if line]


async def until_says(running: Running, path: str, **wanted: object) -> None:
    async def is_so() -> bool:
        return bool(wanted.items() <= (await get(running, path)).json().items())

    await until(is_so)


async def kill_engine(running: Running) -> None:
    running.process.send_signal(signal.SIGUSR1)
    await until_says(running, "/health", loaded=False)


# How it says that it is there


async def test_health_has_these_fields_and_no_other(start: Start) -> None:
    """Strata: "always 200: status "ok" (constant), max_context, model, images(bool), api_key(bool: a key is set),
    loaded(bool), service "strata"... The field set is the same on v0.1.39"."""
    a = await start("a")
    for path in ("/health", "/api/health"):
        assert (await get(a, path)).json() == {
            "status": "ok",
            "max_context": 4096,
            "model": "tiny",
            "images": False,
            "api_key": False,
            "loaded": True,
            "service": "strata",
        }


async def test_json_has_a_space_after_colon_and_comma(start: Start) -> None:
    """Strata: "JSON written with a space after ':' and ','"."""
    a = await start("a")
    answer = await get(a, "/health")
    assert answer.text.startswith('{"status": "ok", ')
    assert (answer.http_version, answer.headers["connection"]) == ("HTTP/1.0", "close")


async def test_models_list_each_alias(start: Start) -> None:
    """Strata: "{id, object "model", status{value loaded|unloaded}, meta{n_ctx}, ... [, aliases]} + one entry per alias
    with alias_of"."""
    a = await start("a", aliases="one, two")
    for path in ("/models", "/v1/models"):
        data = (await get(a, path)).json()["data"]
        assert [entry["id"] for entry in data] == ["tiny", "one", "two"]
        assert [entry.get("alias_of") for entry in data] == [None, "tiny", "tiny"]
        assert {entry["status"]["value"] for entry in data} == {"loaded"}


async def test_the_version_stands_in_two_places(start: Start) -> None:
    """Strata: "the only HTTP place with the engine version besides /props build_info ("Strata X")"."""
    a = await start("a")
    version = (await get(a, "/v1/status")).json()["engine"]
    assert (await get(a, "/props")).json()["build_info"] == f"Strata {version}"
    assert await a.engine.version(a.address) == version


# Slots


@pytest.mark.parametrize("parallel", [1, 2, 8])
async def test_there_is_an_entry_for_each_slot(start: Start, parallel: int) -> None:
    """Strata: "With batch slots (v0.1.41+): one per slot, each n_ctx = whole max_context"."""
    a = await start("a", parallel=parallel)
    slots = (await get(a, "/slots")).json()
    assert [slot["id"] for slot in slots] == list(range(parallel))
    assert {(slot["n_ctx"], slot["is_processing"], slot["n_prompt_tokens"]) for slot in slots} == {(4096, False, 0)}
    load = await a.engine.load(a.spec, a.address)
    assert (load.slots, load.busy, load.waiting, load.context) == (parallel, 0, 0, 4096)
    assert len(load.each) == (1 if parallel == 1 else 0)


async def test_a_request_alone_is_seen_in_no_slot_of_a_batch(start: Start) -> None:
    """Strata: "A request alone runs on the solo path: every batch entry shows idle while it runs"."""
    a = await start("a", "--token-seconds", "0.05", parallel=3)
    async with anyio.create_task_group() as group:
        group.start_soon(a.chat, HELLO)
        await until_says(a, "/status", busy=True)
        assert not any(slot["is_processing"] for slot in (await get(a, "/slots")).json())
        assert (await a.engine.load(a.spec, a.address)).busy == 1
        group.start_soon(a.chat, LONG)

        async def two_are_busy() -> bool:
            return sum(slot["is_processing"] for slot in (await get(a, "/slots")).json()) == 2

        await until(two_are_busy)
        assert (await a.engine.load(a.spec, a.address)).busy == 2
    assert (await a.engine.load(a.spec, a.address)).busy == 0


async def test_a_batch_keeps_a_conversation_in_each_slot(start: Start) -> None:
    """Strata: "With batch: each slot holds its last conversation; engine copies it back when the next prompt extends
    it"."""
    a = await start("a", parallel=2)
    talks = [HELLO, LONG]
    answers = [await a.chat(talk) for talk in talks]
    for talk, answer in zip(talks, answers, strict=True):
        grown = [*talk, {"role": "assistant", "content": content(answer)}, {"role": "user", "content": "and then?"}]
        usage = (await a.chat(grown))["usage"]
        assert isinstance(usage, dict)
        assert usage["prompt_tokens_details"]["cached_tokens"] > 5


def content(body: dict[str, object]) -> str:
    choices = body["choices"]
    assert isinstance(choices, list)
    return str(choices[0]["message"]["content"])


@pytest.mark.parametrize("places", [1, 2])
async def test_who_came_first_is_served_first(places: int) -> None:
    fifo, order, gate = Fifo(places), [], threading.Event()

    def ask(number: int) -> None:
        with fifo.turn():
            if number >= places:
                order.append(number)
            gate.wait(30)

    async def came(number: int) -> bool:
        return fifo.served + fifo.waiting == number + 1

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for number, thread in enumerate(threads):
        thread.start()
        await until(partial(came, number))
    assert (fifo.served, fifo.waiting, fifo.busy) == (places, 6 - places, True)
    gate.set()
    for thread in threads:
        thread.join()
    assert sorted(order) == list(range(places, 6))
    assert places > 1 or order == sorted(order)
    assert not fifo.busy


# Shapes of answers


async def test_reasoning_stands_beside_the_answer(start: Start) -> None:
    """Strata: "reasoning as delta.reasoning_content, answer as delta.content"; "No <think> tags in content"."""
    a = await start("a")
    plain = (await a.chat(HELLO, reasoning_effort="low"))["choices"]
    assert isinstance(plain, list)
    lines = await events(a, reasoning_effort="low")
    deltas = [json.loads(line[6:])["choices"][0]["delta"] for line in lines if line.startswith("data: {")]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == plain[0]["message"]["reasoning_content"]
    assert "".join(delta.get("content", "") for delta in deltas) == plain[0]["message"]["content"]
    assert plain[0]["message"]["reasoning_content"]


async def test_progress_is_told_when_asked_for(start: Start) -> None:
    """Strata: ""return_progress": true adds prompt_progress{total,cache,processed,time_ms} chunks"."""
    a = await start("a")
    told = [line for line in await events(a, return_progress=True) if "prompt_progress" in line]
    assert set(json.loads(told[0][6:])["prompt_progress"]) == {"total", "cache", "processed", "time_ms"}
    assert not [line for line in await events(a) if "prompt_progress" in line]


# The engine's death


async def test_a_killed_engine_leaves_its_server_up(start: Start) -> None:
    """Strata: "engine killed (RAM): server stays up, /health 200 loaded:false, /slots []"; models "data is [] when the
    engine is dead"; props "503 when the engine is not running"."""
    a = await start("a")
    await kill_engine(a)
    assert (await get(a, "/health")).status_code == 200
    assert (await get(a, "/slots")).json() == []
    assert (await get(a, "/v1/models")).json()["data"] == []
    assert (await get(a, "/props")).status_code == 503
    probe = await a.engine.probe(a.address)
    assert (probe.ready, probe.reason) == (False, "Strata's engine process has no model loaded")
    with pytest.raises(EngineRefused, match="lists no slots: its engine process is not running"):
        await a.engine.load(a.spec, a.address)
    with pytest.raises(EngineRefused, match="save with 503: the model is not loaded"):
        await a.cache.save(a.spec, a.address, SESSION, "one.sess")
    assert await a.engine.version(a.address) is None


async def test_the_next_request_restarts_the_engine_and_waits_for_it(start: Start) -> None:
    """Strata: "the NEXT request restarts the engine and blocks for minutes"; requests "waiting across a restart"."""
    a = await start("a", "--load-seconds", "0.4")
    await kill_engine(a)
    async with anyio.create_task_group() as group:
        group.start_soon(a.chat, HELLO)
        await until_says(a, "/status", busy=True)
        assert not (await a.engine.probe(a.address)).ready
        group.start_soon(a.chat, HELLO)
    assert (await a.engine.probe(a.address)).ready


async def test_an_engine_that_dies_in_a_stream_ends_it_with_an_error_and_done(start: Start) -> None:
    """Strata: "`data: {"error":{"type":"server_error","message":"...; the next request restarts it"}}` and THEN `data:
    [DONE]` -> [DONE] alone does not prove success"."""
    a = await start("a", "--die-after", "3")
    lines = await events(a)
    assert lines[-1] == "data: [DONE]"
    error = json.loads(lines[-2].removeprefix("data: "))["error"]
    assert (error["type"], error["message"].endswith("; the next request restarts it")) == ("server_error", True)
    assert sum('"content": "' in line and '"content": ""' not in line for line in lines) == 3
    assert not (await a.engine.probe(a.address)).ready
    assert '"usage"' in (await events(a))[-2]
    assert (await a.engine.probe(a.address)).ready


@pytest.mark.parametrize(("after", "stream"), [("0", True), ("0", False), ("3", False)])
async def test_an_engine_that_dies_before_the_answer_is_503(start: Start, after: str, stream: bool) -> None:
    """Strata: "503 server_error (engine died before the answer began / starting / GPU busy / stuck)"."""
    a = await start("a", "--die-after", after)
    answer = await a.post(CHAT, {"messages": HELLO, "stream": stream})
    assert (answer.status_code, answer.json()["error"]["type"]) == (503, "server_error")
    assert (await a.post(CHAT, {"messages": HELLO, "stream": stream})).status_code == 200


async def test_a_silent_engine_is_killed_after_a_while(start: Start) -> None:
    """Strata: "`: keep-alive` SSE comment about every 10 s of engine silence"; "killed after engine_silence_s (300 s)".
    The double is told shorter times."""
    a = await start("a", "--silent-after", "2", "--keep-alive-seconds", "0.1", engine_silence_s=0.6)
    lines = await events(a)
    assert lines.count(": keep-alive") >= 3
    assert "said nothing for too long" in lines[-2]
    assert lines[-1] == "data: [DONE]"
    assert not (await a.engine.probe(a.address)).ready


async def test_a_silent_engine_notices_that_its_client_left(start: Start) -> None:
    """Strata: "client hang-ups were noticed late (now polled every 0.5 s)"; "default 300, 0 = forever"."""
    a = await start("a", "--silent-after", "2", engine_silence_s=0)
    with anyio.move_on_after(0.5):
        await events(a)
    await until_says(a, "/status", busy=False)
    assert (await a.engine.probe(a.address)).ready


async def test_a_server_that_dies_ends_its_stream_without_done(start: Start) -> None:
    """Strata: "Python server death: stream just closes, no [DONE]"."""
    a = await start("a", "--crash-after", "3")
    lines = await events(a)
    assert len(lines) >= 4
    assert "[DONE]" not in lines[-1]
    with pytest.raises(EngineUnreachable):
        await a.engine.probe(a.address)
    a.process.wait(10)
    a.process.returncode = 0  # as the fixture expects of one that it ends itself


# Loading and unloading


async def test_a_lazy_server_listens_without_a_model(tmp_path: Path, context: Context) -> None:
    """Strata: "loaded=false when lazy, idle-unloaded, or the engine process is dead/restarting"."""
    path = write_config(tmp_path, "tiny", lazy_load=True)
    spec = Spec("tiny", 0, 1, path, 4096, 1, port=free_port())
    address = Address(spec.host, spec.port)
    async with StrataEngine(OPTIONS, context) as engine:
        process = spawn(engine, spec)
        try:
            a = Running(spec, address, engine, None, process)  # type: ignore[arg-type]  # no cache is asked
            await until(lambda: listens(a))
            assert (await get(a, "/health")).json()["loaded"] is False
            assert (await get(a, "/v1/models")).json()["data"][0]["status"] == {"value": "unloaded"}
            await a.chat(HELLO)
            assert (await engine.probe(address)).ready
        finally:
            process.terminate()
            process.wait(20)


async def listens(running: Running) -> bool:
    try:
        return (await get(running, "/health")).status_code == 200
    except httpx.ConnectError:
        return False


async def test_unload_is_refused_while_it_works(start: Start) -> None:
    """Strata: "/unload: 200 {"status":"unloaded"|"not loaded"|"unsupported"} or 409 busy"; "409 model_busy"."""
    a = await start("a", "--token-seconds", "0.05")
    async with anyio.create_task_group() as group:
        group.start_soon(a.chat, HELLO)
        await until_says(a, "/status", busy=True)
        answer = await a.post("/unload", {})
        assert (answer.status_code, answer.json()["error"]["type"]) == (409, "model_busy")
    said = [(await a.post(path, {})).json()["status"] for path in ("/v1/unload", "/unload", "/load")]
    assert said == ["unloaded", "not loaded", "loaded"]


async def test_an_idle_server_unloads_itself(start: Start) -> None:
    """Strata: "--idle-unload S"; an unloaded engine is loaded again by the next request."""
    a = await start("a", "--idle-unload", "0.5", prepare=False)
    await until_says(a, "/health", loaded=False)
    await a.chat(HELLO)
    await until_says(a, "/health", loaded=False)
    assert a.process.poll() is None


# Who may ask


async def test_with_a_key_all_but_health_asks_for_it(start: Start) -> None:
    """Strata: "every GET except `/`, static files and /health needs `Authorization: Bearer K` or `x-api-key: K`, else
    401 ...; all POSTs need it. /health stays open"."""
    a = await start("a", prepare=False, api_key="sesame, other")
    assert (await get(a, "/health")).json()["api_key"] is True
    for path in ("/slots", "/status", "/api/health", "/v1/models"):
        answer = await get(a, path)
        assert (answer.status_code, answer.json()["error"]["type"]) == (401, "authentication_error")
        assert (await get(a, path, Authorization="Bearer sesame")).status_code == 200
        assert (await get(a, path, **{"x-api-key": "other"})).status_code == 200
    assert (await a.post(CHAT, {"messages": HELLO})).status_code == 401
    assert (await a.post(CHAT, {"messages": HELLO}, Authorization="Bearer sesame")).status_code == 200


@pytest.mark.parametrize(("host", "status"), [("strata.example", 403), ("127.0.0.1:1", 200), ("x.localhost", 200)])
async def test_without_a_key_the_host_must_be_local(start: Start, host: str, status: int) -> None:
    """Strata: "Host must be localhost/*.localhost/any IP/bind address/known names, else 403"."""
    a = await start("a")
    assert (await get(a, "/health", Host=host)).status_code == status
    assert (await a.post(CHAT, {"messages": HELLO}, Host=host)).status_code == status


async def test_a_foreign_page_may_not_ask(start: Start) -> None:
    """Strata: "POST /v1/* with a foreign Origin -> 403, and with an Origin the body must be application/json else
    415"."""
    a = await start("a")
    own = f"http://{a.address.host}:{a.address.port}"
    for headers, status in (
        ({"Origin": "http://elsewhere.example"}, 403),
        ({"Origin": own}, 200),
        ({"Origin": own, "Content-Type": "text/plain"}, 415),
        ({"Content-Type": "text/plain"}, 200),
    ):
        assert (await a.post(CHAT, {"messages": HELLO}, **headers)).status_code == status


# Errors


async def test_errors_have_one_shape(start: Start) -> None:
    """Strata: "Error body: {"error":{"type","message"[,"code"]}}. 400 invalid_request_error ..., 502
    structured_output_failed"."""
    a = await start("a")
    for body, status, type_ in (
        ({"messages": []}, 400, "invalid_request_error"),
        ({"messages": HELLO, "max_tokens": 5000}, 400, "invalid_request_error"),
        ({"messages": HELLO, "reasoning_effort": "much"}, 400, "invalid_request_error"),
        ({"messages": HELLO, "response_format": {"type": "json_object"}}, 502, "structured_output_failed"),
    ):
        answer = await a.post(CHAT, body)
        assert (answer.status_code, answer.json()["error"]["type"]) == (status, type_)
        assert answer.json()["error"]["message"]
    assert (await a.post("/v1/completions", {})).status_code == 404


async def test_a_body_that_is_too_large_is_refused(start: Start) -> None:
    """Strata: ">256 MiB -> 413"; "STRATA_MAX_BODY_MIB (256)"."""
    a = await start("a")
    head = f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {257 << 20}\r\n\r\n"
    async with await anyio.connect_tcp(a.address.host, a.address.port) as client:
        await client.send(head.encode())
        assert b" 413 " in (await client.receive()).splitlines()[0]


async def test_sessions_need_one_engine(start: Start) -> None:
    """Strata: "501 feature off / parallel or batch on / replicas (ReplicaEngine hides session_file)"; "Not supported
    (engine refuses): --layer-split, --peer-device, --batch/"parallel", --prompt-cache 0"."""
    a = await start("a", prepare=False, replicas=2)
    assert (await a.post("/slots/0?action=save", {"filename": "x"})).status_code == 501


@pytest.mark.parametrize("name", ["con", "NUL.sess", "Lpt1", "a\x07b", "é" * 101])
async def test_session_names_are_checked(start: Start, name: str) -> None:
    """Strata: "1..200 UTF-8 bytes, no control chars, ... no Windows device names. Else 400"."""
    a = await start("a")
    assert (await a.post("/slots/0?action=save", {"filename": name})).status_code == 400


async def test_a_folder_that_is_gone_is_an_error_of_the_disk(start: Start) -> None:
    """Strata: "500 kind "io""."""
    a = await start("a")
    await a.chat(HELLO)
    a.folder.rmdir()
    answer = await a.post("/slots/0?action=save", {"filename": "x"})
    assert (answer.status_code, answer.json()["error"]["kind"]) == (500, "io")


# Its process


def by_hand(config: Path | None) -> list[str]:
    return [sys.executable, "-m", "viiwork_strata.testing.double", "--config", str(config)]


async def test_its_end_takes_time_and_a_second_signal_cuts_it_short(tmp_path: Path, context: Context) -> None:
    """Strata: "SIGTERM handled like Ctrl+C: stop HTTP, engine gets QUIT on stdin (20 s), then terminate (20 s), then
    kill (20 s). A second SIGINT kills the engine at once"."""
    spec = Spec("tiny", 0, 1, write_config(tmp_path, "tiny"), 4096, 1, port=free_port(), args=("--stop-seconds", "60"))
    address = Address(spec.host, spec.port)
    async with StrataEngine(OPTIONS, context) as engine:
        process = piped(*by_hand(spec.path), "--port", str(spec.port), *spec.args)
        assert process.stdout is not None
        await until_ready(engine, address)
        process.terminate()
        said = [await anyio.to_thread.run_sync(process.stdout.readline) for _ in range(3)]
        assert said[-1] == b"[strata] stopping the engine\n"
        with pytest.raises(EngineUnreachable):
            await engine.probe(address)
        process.send_signal(signal.SIGINT)
        assert await anyio.to_thread.run_sync(process.wait, 20) == 0
        assert process.stdout.read() == b"[strata] the engine is killed\n"
        process.stdout.close()


async def test_it_is_run_by_hand(tmp_path: Path) -> None:
    """Strata: "stages go to stdout as `[strata] ...`; final line starts `ready: http://HOST:PORT/v1`"."""
    path, port = write_config(tmp_path, "tiny"), str(free_port())
    process = piped(*by_hand(path), "--port", port, "--load-seconds", "0.2")
    assert process.stdout is not None
    said = [await anyio.to_thread.run_sync(process.stdout.readline) for _ in range(2)]
    process.terminate()
    assert process.wait(20) == 0
    process.stdout.close()
    assert said == [b"[strata] loading tiny\n", f"ready: http://127.0.0.1:{port}/v1\n".encode()]


async def test_its_help_names_its_faults() -> None:
    told = await anyio.run_process([sys.executable, "-m", "viiwork_strata.testing.double", "--help"])
    assert all(flag in told.stdout for flag in (b"--die-after", b"--silent-after", b"--crash-after", b"SIGUSR1"))


async def test_an_empty_key_ends_it_early(tmp_path: Path) -> None:
    """Strata: "empty api key -> return 2"."""
    argv = [*by_hand(write_config(tmp_path, "tiny")), "--api-key", ""]
    assert (await anyio.run_process(argv, check=False)).returncode == 2
