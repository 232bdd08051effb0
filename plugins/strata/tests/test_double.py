"""The double in every state, with the fact sheet's words beside each."""

from __future__ import annotations

import json
import threading
from functools import partial

import anyio
import anyio.to_thread
import pytest

from viiwork_strata.testing.fifo import Fifo

from .conftest import (
    CHAT,
    HELLO,
    LONG,
    Start,
    events,
    get,
    until,
    until_says,
)

pytestmark = pytest.mark.anyio


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
