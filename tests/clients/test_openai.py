"""What a user of OpenAI's own client gets from a real llama-server through a node."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from callers import EMBEDS, REAL, async_client, base_url, client
from http_node import Node, until
from openai.types.chat import ChatCompletionChunk, ChatCompletionMessageParam, ChatCompletionToolUnionParam
from told import ENDLESS

HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is new in town?"}]
CITIES = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Oslo", "Paris"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS: list[ChatCompletionToolUnionParam] = [
    {"type": "function", "function": {"name": "weather", "description": "The weather.", "parameters": CITIES}}
]


@pytest.fixture
def ai(real_node: Node) -> Iterator[openai.OpenAI]:
    with client(real_node) as made:
        yield made


def greedy(ai: openai.OpenAI, messages: list[ChatCompletionMessageParam] = HELLO, **more: Any) -> Any:
    return ai.chat.completions.create(model=REAL, messages=messages, max_tokens=24, temperature=0, **more)


def text(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_the_models_are_listed(ai: openai.OpenAI) -> None:
    assert [(one.id, one.object, one.owned_by) for one in ai.models.list()] == [
        (REAL, "model", "local"),
        (EMBEDS, "model", "local"),
    ]


def test_a_chat_is_answered(ai: openai.OpenAI, real_node: Node) -> None:
    reply = greedy(ai)
    (choice,) = reply.choices
    assert (choice.finish_reason, choice.message.role) == ("length", "assistant")
    assert choice.message.content.strip()
    assert (reply.object, reply.model) == ("chat.completion", REAL)
    assert reply.usage.completion_tokens == 24
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + 24
    told = real_node.heard("request", request_id=reply._request_id)
    assert (told["status"], told["tokens_out"]) == (200, 24)


def test_a_conversation_goes_on(ai: openai.OpenAI) -> None:
    said = greedy(ai).choices[0].message.content
    longer: list[ChatCompletionMessageParam] = [
        *HELLO,
        {"role": "assistant", "content": said},
        {"role": "user", "content": [{"type": "text", "text": "And then? 👩‍💻"}]},
    ]
    reply = greedy(ai, longer)
    assert reply.choices[0].message.content
    assert reply.usage.prompt_tokens_details.cached_tokens > 0


def test_a_stream_says_what_the_plain_answer_says(ai: openai.OpenAI) -> None:
    plain = greedy(ai).choices[0].message.content
    chunks = list(greedy(ai, stream=True))
    assert len(chunks) > 10
    assert text(chunks) == plain
    assert [chunk.choices[0].finish_reason for chunk in chunks][-1] == "length"
    assert {chunk.model for chunk in chunks} == {REAL}


def test_usage_of_a_stream_comes_when_it_is_asked_for(ai: openai.OpenAI) -> None:
    assert all(chunk.choices and chunk.usage is None for chunk in greedy(ai, stream=True))
    *chunks, last = greedy(ai, stream=True, stream_options={"include_usage": True})
    assert all(chunk.choices and chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert last.usage.completion_tokens == 24
    assert last.usage.prompt_tokens_details.cached_tokens == last.usage.prompt_tokens - 1


def test_several_answers_to_one_chat(ai: openai.OpenAI) -> None:
    assert sorted(choice.index for choice in greedy(ai, n=2).choices) == [0, 1]


def test_a_schema_is_kept(ai: openai.OpenAI) -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "place", "schema": CITIES, "strict": True}}
    reply = ai.chat.completions.create(model=REAL, messages=HELLO, temperature=0, response_format=schema)  # type: ignore[call-overload]  # a plain dictionary
    assert json.loads(reply.choices[0].message.content)["city"] in ("Oslo", "Paris")


@pytest.mark.parametrize("stream", [False, True])
def test_tools_are_taken(ai: openai.OpenAI, stream: bool) -> None:
    """Whether a model with random weights calls one is another question; see test_openai_told."""
    reply = greedy(ai, tools=TOOLS, stream=stream)
    if stream:
        assert text(list(reply))
    else:
        assert reply.choices[0].message.content or reply.choices[0].message.tool_calls


def test_the_older_completions(ai: openai.OpenAI) -> None:
    reply = ai.completions.create(model=REAL, prompt=["Once", "Twice"], max_tokens=8, temperature=0)
    assert [choice.index for choice in reply.choices] == [0, 1]
    chunks = ai.completions.create(model=REAL, prompt="Once", max_tokens=8, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == reply.choices[0].text


def test_the_newer_responses(ai: openai.OpenAI) -> None:
    reply = ai.responses.create(model=REAL, input="What is new?", max_output_tokens=8, temperature=0)
    assert reply.output_text
    events = list(
        ai.responses.create(model=REAL, input="What is new?", max_output_tokens=8, temperature=0, stream=True)
    )
    assert events[-1].type == "response.completed"
    assert "".join(one.delta for one in events if one.type == "response.output_text.delta") == reply.output_text


# Embeddings


def test_embeddings(ai: openai.OpenAI) -> None:
    both = ai.embeddings.create(model=EMBEDS, input=["one town", "another town"])
    assert [one.index for one in both.data] == [0, 1]
    first, second = (one.embedding for one in both.data)
    assert len(first) == len(second) > 1
    assert first != second
    alone, again = (ai.embeddings.create(model=EMBEDS, input="one town").data[0].embedding for _ in range(2))
    assert len(alone) == len(first)
    assert again == pytest.approx(alone, abs=1e-6)


def test_an_engine_that_cannot_embed_says_so_in_its_own_words(ai: openai.OpenAI) -> None:
    with pytest.raises(openai.APIStatusError, match="does not support embeddings") as caught:
        ai.embeddings.create(model=REAL, input="one town")
    assert caught.value.status_code == 501


# Errors


def test_an_unknown_model_is_not_found(ai: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match=f"known models: {REAL}, {EMBEDS}") as caught:
        ai.chat.completions.create(model="nobody", messages=HELLO)
    assert (caught.value.code, caught.value.type) == ("not_found", "not_found")
    assert caught.value.request_id


def test_an_unknown_path_is_not_found(ai: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="no such path"):
        ai.images.generate(model=REAL, prompt="a town")


def test_a_request_without_a_model_is_a_bad_one(ai: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="model is required"):
        ai.chat.completions.create(model="", messages=HELLO)


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_does_not_fit_is_the_engines_bad_request(ai: openai.OpenAI, stream: bool) -> None:
    words: list[ChatCompletionMessageParam] = [{"role": "user", "content": "town " * 9000}]
    with pytest.raises(openai.BadRequestError, match="exceeds the available context size") as caught:
        greedy(ai, words, stream=stream)
    assert caught.value.type == "exceed_context_size_error"
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["n_ctx"] == 4096


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model": "tiny", "messages": [{"role": "user", "content": "\xff\xfe"}]}',
        b'{"model": "tiny", "messages": [{"role": "user", "content": "\xed\xa0\x80"}], "max_tokens": 1}',
        b'{"model": "tiny", "messages": "\xc3"}',
    ],
)
def test_what_is_no_text_is_refused_and_harms_nobody(ai: openai.OpenAI, real_node: Node, raw: bytes) -> None:
    before = real_node.model(REAL)["backends"][0]
    with pytest.raises(openai.APIStatusError) as caught:
        ai.post(
            "/chat/completions", content=raw, cast_to=object, options={"headers": {"Content-Type": "application/json"}}
        )
    assert 400 <= caught.value.status_code <= 500
    assert caught.value.body, "an error object, not a page"
    assert greedy(ai).choices
    after = real_node.model(REAL)["backends"][0]
    assert (after["pid"], after["status"]) == (before["pid"], "healthy")


# Leaving


def test_a_stream_that_is_closed_frees_its_slot(ai: openai.OpenAI, real_node: Node) -> None:
    stream = ai.chat.completions.with_raw_response.create(
        model=REAL, messages=HELLO, max_tokens=ENDLESS, stream=True, extra_body={"ignore_eos": True}
    )
    rid = stream.headers["x-request-id"]
    with stream.parse() as chunks:
        assert next(chunks).choices
        until(lambda: "running" in real_node.slots(REAL), "it runs")
    told = real_node.heard("request", request_id=rid)
    assert (told["status"], told["reason"]) == (499, "the client left")
    until(lambda: real_node.idle(REAL), "the slot is free again", 5)


def test_a_client_that_loses_patience_has_left(ai: openai.OpenAI, real_node: Node) -> None:
    """llama-server looks for the clients of plain requests only now and then; until it has, the slot is not free."""
    with pytest.raises(openai.APITimeoutError):
        greedy(
            ai.with_options(timeout=0.3),
            extra_headers={"X-Request-Id": "impatient"},
            extra_body={"max_tokens": ENDLESS, "ignore_eos": True},
        )
    assert real_node.heard("request", request_id="impatient")["status"] == 499
    assert greedy(ai).choices, "the other slot serves meanwhile"
    until(lambda: real_node.idle(REAL), "the slot is free again", 30)


# Many at once


def test_twenty_chats_at_once(real_node: Node) -> None:
    """Over two slots; half of them streamed, and one in the middle is given up."""

    async def one(ai: openai.AsyncOpenAI, number: int) -> tuple[str, int]:
        messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": f"Tell me about town {number}."}]
        if number % 2:
            reply = await ai.chat.completions.create(model=REAL, messages=messages, max_tokens=24, temperature=0)
            assert reply.usage is not None
            return reply.choices[0].message.content or "", reply.usage.completion_tokens
        stream = await ai.chat.completions.create(
            model=REAL,
            messages=messages,
            max_tokens=24,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        *chunks, last = [chunk async for chunk in stream]
        assert last.usage is not None
        return text(chunks), last.usage.completion_tokens

    async def scene() -> list[tuple[str, int]]:
        async with async_client(real_node) as ai:
            work = [asyncio.ensure_future(one(ai, number)) for number in range(20)]
            given_up = asyncio.ensure_future(one(ai, 20))
            await asyncio.wait([work[0]])
            given_up.cancel()
            return await asyncio.gather(*work)

    answers = asyncio.run(scene())
    assert all(said.strip() for said, _ in answers)
    assert [written for _, written in answers] == [24] * 20
    assert len({said for said, _ in answers}) > 1, "each got the answer to its own question"
    until(lambda: real_node.idle(REAL), "all slots are free again", 5)


def test_an_async_client_that_cancels_leaves(real_node: Node) -> None:
    async def scene() -> str:
        async with async_client(real_node) as ai:
            stream = await ai.chat.completions.with_raw_response.create(
                model=REAL, messages=HELLO, max_tokens=ENDLESS, stream=True, extra_body={"ignore_eos": True}
            )

            async def read() -> None:
                async for chunk in stream.parse():
                    begun.set()
                    assert chunk.choices

            begun = asyncio.Event()
            reading = asyncio.create_task(read())
            await begun.wait()
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            return stream.headers["x-request-id"]

    assert real_node.heard("request", request_id=asyncio.run(scene()))["status"] == 499
    until(lambda: real_node.idle(REAL), "the slot is free again", 5)


def test_a_node_that_is_not_there_is_a_connection_error(real_node: Node) -> None:
    nowhere = openai.OpenAI(
        base_url=base_url(real_node).replace(str(real_node.port), "1"), api_key="any", max_retries=0
    )
    with nowhere, pytest.raises(openai.APIConnectionError):
        nowhere.models.list()
