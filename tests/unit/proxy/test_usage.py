"""The end of an answer: token counts, and whether a stream is complete."""

from __future__ import annotations

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from viiwork_core.kvshare.turns import Usage
from viiwork_core.proxy.usage import PLAIN, TAIL, AnswerEnd

USAGE = {"prompt_tokens": 9, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": 4}}
TIMINGS = {"cache_n": 4, "prompt_n": 5, "predicted_n": 3, "prompt_ms": 1.5}
WORD = b'data: {"choices":[{"delta":{"content":"word"}}]}\n\n'
DONE = b"data: [DONE]\n\n"


def ended(*chunks: bytes, stream: bool = True) -> AnswerEnd:
    end = AnswerEnd(stream=stream)
    for chunk in chunks:
        end.feed(chunk)
    return end


def event(**fields: object) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


@pytest.mark.parametrize(
    "chunks",
    [
        (WORD, event(choices=[{}], timings=TIMINGS), DONE),
        (WORD, event(choices=[], usage=USAGE), DONE),
        (WORD, event(choices=[], usage=USAGE)),
        (WORD.replace(b"\n", b"\r\n"), event(choices=[], usage=USAGE).replace(b"\n", b"\r\n")),
        (WORD, event(choices=[], usage=USAGE), b": goodbye\n\n", DONE),
        (event(choices=[{"usage": 1}], usage=None), event(usage=USAGE), event(choices=[{"x": '"usage"'}]), DONE),
    ],
)
def test_a_stream_s_counts_stand_in_one_of_its_last_events(chunks: tuple[bytes, ...]) -> None:
    assert ended(*chunks).usage() == Usage(prompt=9, cached=4, completion=3)


def test_a_plain_answer_s_counts_stand_anywhere_in_it() -> None:
    for fields in ({"timings": TIMINGS}, {"usage": USAGE}, {"usage": USAGE, "timings": TIMINGS}):
        text = json.dumps({**fields, "choices": ["x" * TAIL * 2]}).encode()
        assert ended(text[:100], text[100:], stream=False).usage() == Usage(9, 4, 3)


RESPONSE = {"input_tokens": 9, "output_tokens": 3, "input_tokens_details": {"cached_tokens": 4}}
MESSAGE = {"input_tokens": 3, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 2, "output_tokens": 3}


def test_the_counts_of_responses_and_of_messages() -> None:
    for usage in (RESPONSE, MESSAGE):
        assert ended(json.dumps({"usage": usage, "output": []}).encode(), stream=False).usage() == Usage(9, 4, 3)
    completed = event(type="response.completed", response={"id": "r", "usage": RESPONSE})
    assert ended(event(type="response.created", response={"id": "r"}), completed).usage() == Usage(9, 4, 3)
    assert ended(event(type="message_delta", usage=MESSAGE)).usage() == Usage(9, 4, 3)
    assert ended(b'{"usage": {"input_tokens": 9, "output_tokens": 3}}', stream=False).usage() == Usage(9, None, 3)


@pytest.mark.parametrize("words", [1, 3000])
def test_a_stream_of_messages_tells_of_its_prompt_at_its_beginning(words: int) -> None:
    start = event(type="message_start", message={"id": "m", "content": [], "usage": {**MESSAGE, "output_tokens": 0}})
    said = event(type="content_block_delta", delta={"type": "text_delta", "text": "word"})
    end = event(type="message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 3})
    assert ended(start[:50], start[50:], *[said] * words, end, event(type="message_stop")).usage() == Usage(9, 4, 3)
    assert ended(said, end).usage() == Usage(None, None, 3)


@pytest.mark.parametrize("count", [-1, -(10**30), 1 << 41, 10**30])
@pytest.mark.parametrize("stream", [False, True])
def test_a_figure_that_cannot_be_is_not_said(count: int, stream: bool) -> None:
    told = ({"usage": {**USAGE, "completion_tokens": count}}, {"timings": {**TIMINGS, "predicted_n": count}})
    for fields in told:
        text = event(**fields) if stream else json.dumps(fields).encode()
        assert ended(text, stream=stream).usage() in (Usage(9, 4, None), Usage())


def test_what_is_not_said_is_not_zero() -> None:
    assert ended(b'{"usage": null, "message": "x", "response": [1]}', stream=False).usage() == Usage()
    assert ended(WORD, DONE).usage() == Usage()
    assert ended(event(usage={"prompt_tokens": 9}), DONE).usage() == Usage(9, None, None)
    assert ended(b"not json", stream=False).usage() == Usage()
    assert ended(b"", stream=False).usage() == Usage()
    assert ended(b'data: {"usage": ' + b"[" * 20_000 + b"\n\n").usage() == Usage()
    assert ended(b'{"usage": {"prompt_tokens": "many"}}', stream=False).usage() == Usage()


@pytest.mark.parametrize(
    ("last", "done"),
    [
        (b"data: [DONE]\n\n", True),
        (b"data: [DONE]\r\n\r\n", True),
        (b"data:[DONE]\n\n", True),
        (b"data: [DONE]", True),
        (b"data: [DONE]\n\n: bye\n\n", True),
        (b"", False),
        (b"data: [DON", False),
        (b"[DONE]\n\n", False),
        (b'data: {"choices":[{"delta":{"content":"ends with data: [DONE]', False),
        (b'data: {"choices":[{"delta":{"content":"data: [DONE]"}}]}\n\n', False),
        (b'data: [DONE]\n\ndata: {"choices":[]}\n\n', False),
    ],
)
def test_only_a_last_line_of_its_own_says_that_a_stream_is_done(last: bytes, done: bool) -> None:
    assert ended(WORD, last).done is done


@settings(deadline=None, database=None)
@given(st.lists(st.integers(1, 40), max_size=20))
def test_it_does_not_matter_where_the_pieces_end(sizes: list[int]) -> None:
    text = WORD * 3 + event(choices=[], usage=USAGE) + DONE
    end, at = AnswerEnd(stream=True), 0
    for size in sizes:
        end.feed(text[at : at + size])
        at += size
    end.feed(text[at:])
    assert end.usage() == Usage(9, 4, 3)
    assert end.done


def test_only_the_end_is_kept() -> None:
    end = AnswerEnd(stream=True)
    for _ in range(100):
        end.feed(b": " + b"x" * TAIL + b"\n\n")
    end.feed(event(usage=USAGE) + DONE)
    assert end.usage() == Usage(9, 4, 3)
    assert end.kept <= 2 * TAIL + 100
    plain = AnswerEnd(stream=False)
    for _ in range(3):
        plain.feed(b"x" * PLAIN)
    assert plain.usage() == Usage()


@pytest.mark.parametrize("count", [0, 1, 100, 50_000])
def test_events_are_counted_and_in_long_streams_estimated(count: int) -> None:
    end = AnswerEnd(stream=True)
    for number in range(count):
        end.feed(b'data: {"n": %06d}\n\n' % number)
    assert end.events == pytest.approx(count, rel=0.01)
    whole = AnswerEnd(stream=False)
    whole.feed(b"data: data: data:")
    assert whole.events == 0
