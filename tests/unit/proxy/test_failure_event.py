"""The event with which an engine says that it has failed, in whatever pieces it comes."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from viiwork_core.proxy.failure_event import FailureEvent

WORD = b'data: {"choices":[{"delta":{"content":"a \\"error\\": b"}}]}\n\n'
FAILED = b'data: {"error": {"type": "server_error", "message": "it died"}}\n\n'
DONE = b"data: [DONE]\n\n"


def passed(*pieces: bytes) -> tuple[bytes, FailureEvent]:
    """What goes on until a failure is seen."""
    failure, out = FailureEvent(), b""
    for piece in pieces:
        out += failure.feed(piece)
        if failure.message is not None:
            break
    else:
        failure.finish()
    return out, failure


@given(st.lists(st.integers(min_value=1, max_value=len(WORD + FAILED + DONE) - 1)))
def test_nothing_after_it_goes_on_however_the_stream_is_cut(cuts: list[int]) -> None:
    text, ends = WORD + FAILED + DONE, sorted(set(cuts))
    pieces = [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    out, failure = passed(*pieces)
    assert out == WORD + FAILED
    assert failure.message == "it died"


@given(st.lists(st.integers(min_value=1, max_value=2 * len(WORD) + len(DONE) - 1)))
def test_any_other_stream_goes_on_as_it_is(cuts: list[int]) -> None:
    text, ends = WORD + WORD + DONE, sorted(set(cuts))
    pieces = [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]
    out, failure = passed(*pieces)
    assert (out, failure.message) == (text, None)


@pytest.mark.parametrize(
    "line",
    [
        b'data: {"error": null, "choices": []}',
        b'data: {"error": null}',
        b'data: {"error": {}}',
        b'data: {"error": "x", "choices": []}',
        b'data: {"other": {"error": "x"}}',
        b'data: ["error"]',
        b'data: "error"',
        b'data: {"error": ',
        b': {"error": "x"}',
        b'event: "error"',
        b'data: {"error": "\xff"}',
    ],
)
def test_these_are_none(line: bytes) -> None:
    out, failure = passed(line + b"\n\n", DONE)
    assert (out, failure.message) == (line + b"\n\n" + DONE, None)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'data: {"error": "out of memory"}\n', "out of memory"),
        (b'data:{"error":{"message":"x","code":500}}\r\n', "x"),
        (b'data: {"error": {"code": 500}}\n', "{'code': 500}"),
        (b'event: error\ndata: {"error": {"message": "' + b"x" * 500 + b'"}}\n', "x" * 200),
    ],
)
def test_these_are(line: bytes, message: str) -> None:
    out, failure = passed(line + b"\n", DONE)
    assert out.rstrip() == line.rstrip()
    assert (failure.message, failure.leads) == (message, True)


def test_one_that_follows_an_answer_does_not_lead() -> None:
    assert not passed(WORD + FAILED)[1].leads


def test_one_without_an_end_of_line_counts_at_the_stream_s_end() -> None:
    out, failure = passed(WORD, FAILED.rstrip())
    assert (out, failure.message) == (WORD + FAILED.rstrip(), "it died")


def test_the_rest_of_an_overlong_line_is_not_taken_for_a_line() -> None:
    long = b'data: {"choices": "' + b"x" * 70_000
    out, failure = passed(long, b'data: {"error": "x"}"}', b"\n\n", DONE)
    assert failure.message is None
    assert out == long + b'data: {"error": "x"}"}\n\n' + DONE
    assert passed(long, b'"}\n\n', FAILED)[1].message == "it died"
