"""The usage chunk that the core asked for does not reach a client that did not, and nothing else changes."""

from __future__ import annotations

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from viiwork_core.proxy.usage_chunk import UsageChunkFilter

WORD = b'data: {"choices":[{"delta":{"content":"w\xf0\x9f\x98\x80rd"}}]}'
COMMENT = b": ping"
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 1}}'
BOTH = b'data: {"choices":[{"delta":{}}],"usage":{"prompt_tokens":1}}'
NAMED = b'event: message\nid: 7\ndata: {"choices":[],\ndata: "usage":{"prompt_tokens":1}}'
DONE = b"data: [DONE]"
ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n")


def filtered(*chunks: bytes) -> bytes:
    one = UsageChunkFilter()
    return b"".join(one.feed(chunk) for chunk in chunks) + one.finish()


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("usage", [USAGE, NAMED])
def test_the_usage_chunk_is_taken_out(end: bytes, usage: bytes) -> None:
    before, after = WORD + end + COMMENT + end, DONE + end
    assert filtered(before + usage + end + after) == before + after


@pytest.mark.parametrize("end", ENDS)
def test_an_event_goes_on_as_soon_as_it_is_complete(end: bytes) -> None:
    one = UsageChunkFilter()
    assert one.feed(WORD) == b""
    assert one.feed(end) == WORD + end
    assert one.feed(COMMENT + end + b"data: {") == COMMENT + end
    assert one.feed(b'"a": 1}' + end) == b'data: {"a": 1}' + end


@pytest.mark.parametrize(
    "event",
    [
        BOTH,
        b'data: {"usage": {"prompt_tokens": 1}}',
        b'data: {"choices": [], "usage": null}',
        b'data: {"choices": [], "text": "\\"usage\\""}',
        b': {"choices": [], "usage": {}}',
        b'data: {"choices": [], "usage": {}} and more',
        b'data: {"choices": [], "usage": ' + b"[" * 20_000,
    ],
)
def test_everything_else_stays(event: bytes) -> None:
    assert filtered(event + b"\n\n", DONE) == event + b"\n\n" + DONE


def test_what_is_left_at_the_end_goes_on_unless_it_is_the_usage_chunk() -> None:
    assert filtered(WORD + b"\n\n", DONE) == WORD + b"\n\n" + DONE
    assert filtered(WORD + b"\n\n", USAGE) == WORD + b"\n\n"


@settings(deadline=None, database=None, max_examples=300)
@given(
    events=st.lists(st.sampled_from([WORD, COMMENT, USAGE, BOTH, NAMED, DONE, b'data: {"a":1}']), max_size=6),
    end=st.sampled_from(ENDS[:3]),
    cuts=st.lists(st.integers(1, 30), max_size=30),
)
def test_it_does_not_matter_where_the_pieces_end(events: list[bytes], end: bytes, cuts: list[int]) -> None:
    text = b"".join(event + end for event in events)
    pieces, at = [], 0
    for size in cuts:
        pieces.append(text[at : at + size])
        at += size
    wanted = [event for event in events if event not in (USAGE, NAMED)]
    out = filtered(*pieces, text[at:])
    # A line's end of two bytes may be cut in the middle; then the event after it is judged with the second of them.
    assert _events(out) == wanted
    assert set(out) <= set(text)
    if end != b"\r\n\r\n":
        assert out == b"".join(event + end for event in wanted)


def _events(text: bytes) -> list[bytes]:
    lines = text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n")
    return [line.strip(b"\n") for line in lines if line.strip(b"\n")]


def test_a_long_event_in_small_pieces_is_not_searched_again_and_again() -> None:
    one, piece = UsageChunkFilter(), b"x" * 1000
    looked = []
    one.feed(b'data: {"text": "')
    for _ in range(50):
        assert one.feed(piece) == b""
        looked.append(one.ahead)
    assert max(looked) <= 3
    assert json.loads(one.feed(b'"}\n\n')[5:])["text"] == "x" * 50_000
