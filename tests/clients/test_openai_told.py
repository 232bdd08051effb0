"""OpenAI's own client against engines that do what a real one does only now and then."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import openai
import pytest
from callers import FAKE, QUEUE_MAX, SCRIPTED, async_client, client
from http_node import Node, script, soon, streamed, until
from openai.types.chat import ChatCompletionMessageParam
from told import CALL, DELTAS, WORD

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is new in town?"}]
FIRST = WORD % b'{"role":"assistant","content":"a"}'


@pytest.fixture
def ai(node: Node) -> Iterator[openai.OpenAI]:
    with client(node) as made:
        yield made


def told(ai: openai.OpenAI, steps: list[list[Any]], rid: str = "r", **more: Any) -> Any:
    """A chat whose answer is `steps`."""
    headers = {"X-Request-Id": rid}
    body = {"script": steps}
    return ai.chat.completions.create(model=SCRIPTED, messages=HELLO, extra_headers=headers, extra_body=body, **more)


def later(call: Any, *given: Any, **more: Any) -> Future[Any]:
    """What a call returns or raises, from a thread of its own."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(call(*given, **more))
        except openai.OpenAIError as error:
            future.set_exception(error)

    threading.Thread(target=work).start()
    return future


# Tool calls


def test_a_tool_call_comes_back(ai: openai.OpenAI) -> None:
    (choice,) = told(ai, script(("json", 200, json.dumps(CALL)))).choices
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert (call.id, call.function.name, json.loads(call.function.arguments)) == ("call_1", "weather", {"city": "Oslo"})


def test_a_streamed_tool_call_is_put_together_by_its_index(ai: openai.OpenAI) -> None:
    frames = [WORD % delta for delta in DELTAS]
    calls: dict[int, list[str]] = {}
    for chunk in told(ai, streamed(*frames, b"data: [DONE]\n\n"), stream=True):
        for part in chunk.choices[0].delta.tool_calls or ():
            id_, name, arguments = calls.setdefault(part.index, ["", "", ""])
            calls[part.index] = [
                id_ + (part.id or ""),
                name + (part.function.name or ""),
                arguments + part.function.arguments,
            ]
    assert calls == {0: ["call_1", "weather", '{"city":"Oslo"}'], 1: ["call_2", "clock", "{}"]}


# A full node


def full(ai: openai.OpenAI, node: Node, gate: str) -> list[Future[Any]]:
    """Both slots taken until the gate opens, and the queue full."""
    held = [later(told, ai, script(("gate", gate), ("json", 200, json.dumps(CALL)))) for _ in range(2)]
    until(lambda: node.model(SCRIPTED)["busy"] == 2, "the slots are taken")
    held += [later(told, ai, script(("json", 200, json.dumps(CALL)))) for _ in range(QUEUE_MAX)]
    until(lambda: node.model(SCRIPTED)["queued"] == QUEUE_MAX, "the queue is full")
    return held


def test_a_full_queue_is_a_rate_limit(ai: openai.OpenAI, node: Node) -> None:
    held = full(ai, node, "limit")
    with pytest.raises(openai.RateLimitError, match=f"queue for {SCRIPTED} is full") as caught:
        told(ai, script(("json", 200, "{}")))
    assert (caught.value.code, caught.value.type) == ("queue_full", "rate_limit")
    assert caught.value.response.headers["retry-after"] == "2"
    node.engine(SCRIPTED).open("limit")
    assert all(one.result(20).choices for one in held)


def test_a_client_that_tries_again_is_served_in_the_end(ai: openai.OpenAI, node: Node) -> None:
    """As users have it: the client waits for as long as Retry-After says, by itself."""
    held = full(ai, node, "again")
    patient = later(told, ai.with_options(max_retries=5), script(("json", 200, json.dumps(CALL))), "patient")
    node.heard("request", request_id="patient", status=429)
    node.engine(SCRIPTED).open("again")
    assert all(one.result(20).choices for one in (*held, patient))
    assert node.heard("request", request_id="patient", status=200)


# Errors


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, openai.BadRequestError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (422, openai.UnprocessableEntityError),
        (500, openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_engines_error_is_the_clients(
    ai: openai.OpenAI, status: int, kind: type[openai.APIStatusError], stream: bool
) -> None:
    body = {"message": "in its own words", "type": "of_its_own", "code": "mine", "param": "n"}
    with pytest.raises(kind, match="in its own words") as caught:
        told(ai, script(("json", status, json.dumps({"error": body}))), stream=stream)
    assert (caught.value.body, caught.value.code, caught.value.param) == (body, "mine", "n")
    assert caught.value.request_id == "r"


def test_an_engine_that_is_busy_everywhere_is_unavailable(ai: openai.OpenAI, node: Node) -> None:
    node.engine(SCRIPTED).refuse(503, 503, 503)
    with pytest.raises(openai.InternalServerError, match="no route has capacity") as caught:
        told(ai, script(("json", 200, "{}")))
    assert (caught.value.status_code, caught.value.code) == (503, "no_capacity")
    node.engine(SCRIPTED).refuse()


def test_an_engine_that_does_not_answer_is_a_server_error(ai: openai.OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="the backend did not answer") as caught:
        told(ai, script(("cut",)))
    assert (caught.value.status_code, caught.value.code) == (502, "backend_failed")


def test_a_body_that_is_too_large(ai: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError, match=r"raise api\.max_body") as caught:
        told(ai, script(("json", 200, "{}")), user="x" * (3 << 20))
    assert (caught.value.status_code, caught.value.code) == (413, "body_too_large")


def test_another_method(ai: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError, match="use POST") as caught:
        ai.get("/chat/completions", cast_to=object)
    assert caught.value.status_code == 405


# Cuts


def test_a_cut_stream_is_a_connection_error(ai: openai.OpenAI) -> None:
    stream = told(ai, streamed(FIRST, FIRST, end=False), stream=True)
    assert [next(stream).choices[0].delta.content for _ in range(2)] == ["a", "a"]
    with pytest.raises(openai.APIConnectionError):
        next(stream)


def test_a_cut_answer_is_a_connection_error(ai: openai.OpenAI) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
    with pytest.raises(openai.APIConnectionError):
        told(ai, script(("raw", head), ("cut",)))


def test_an_error_within_a_stream_is_an_error(ai: openai.OpenAI) -> None:
    """Engines report what fails after the first token as an event; it must arrive as one."""
    event = b'data: {"error":{"message":"out of memory","type":"server_error","code":500}}\n\n'
    with pytest.raises(openai.APIError, match="out of memory"):
        list(told(ai, streamed(FIRST, event), stream=True))


# Many at once


def test_twenty_chats_at_once_get_the_answers_to_their_own_questions(node: Node) -> None:
    """The fake engine's text depends on every token of the prompt, so a mix-up shows."""

    async def one(ai: openai.AsyncOpenAI, number: int) -> str:
        messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": f"Tell me about town {number}."}]
        reply = await ai.chat.completions.create(model=FAKE, messages=messages, max_tokens=8)
        return reply.choices[0].message.content or ""

    async def scene() -> None:
        async with async_client(node) as ai:
            alone = [await one(ai, number) for number in range(20)]
            assert await asyncio.gather(*(one(ai, number) for number in range(20))) == alone
            assert len(set(alone)) > 10

    asyncio.run(scene())


def test_a_stream_that_is_closed_ends_the_engines_work(ai: openai.OpenAI, node: Node) -> None:
    stream = ai.chat.completions.create(model=FAKE, messages=HELLO, max_tokens=6000, stream=True)
    with stream:
        assert next(stream).choices
    engine = node.engine(FAKE)
    until(lambda: engine.fake_state()["active"] == 0, "the engine has stopped", 5)
    assert engine.fake_state()["cancelled"] == 1
    until(lambda: node.idle(FAKE), "the slot is free again", 5)


def test_one_of_many_that_leaves_takes_nobody_along(node: Node) -> None:
    async def scene() -> None:
        async with async_client(node) as ai:
            stays, leaves = [
                await ai.chat.completions.create(model=FAKE, messages=HELLO, max_tokens=tokens, stream=True)
                for tokens in (60, 6000)
            ]
            await leaves.close()
            await soon(lambda: node.model(FAKE)["busy"] == 1, "its slot is free again", 5)
            words = [chunk.choices[0].delta.content async for chunk in stays]
            assert sum(word is not None for word in words) == 60

    asyncio.run(scene())
