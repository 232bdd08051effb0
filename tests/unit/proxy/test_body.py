"""The body: what nobody edits goes out byte for byte as it came."""

from __future__ import annotations

import json

import pytest

from viiwork_core.errors import InvalidRequest
from viiwork_core.proxy.body import Body

ODD = (
    b' { "model" : "m",\r\n "big": 123456789012345678901234567890, "huge": 1e400, "tiny": 1.0e-0, '
    b'"text": "\xc3\xbf\xc3\xbe \\u00e9 \\/ \xf0\x9f\x98\x80", "deep": {"a" : [ 1 , {"b":null} ] }, '
    b'"twice": 1, "twice": 2 } '
)


def test_unedited_bytes_are_the_same_bytes() -> None:
    assert Body(ODD).edited() == ODD
    assert Body(ODD).copy().edited() == ODD


def test_dropping_what_is_not_there_edits_nothing() -> None:
    body = Body(ODD)
    body.drop("id_slot")
    assert body.edited() == ODD


def test_an_edit_changes_only_its_field() -> None:
    body = Body(ODD)
    body.set("id_slot", 3)
    edited = body.edited()
    for value in (
        b"123456789012345678901234567890",
        b"1e400",
        b"1.0e-0",
        b'"\xc3\xbf\xc3\xbe \\u00e9 \\/ \xf0\x9f\x98\x80"',
        b'{"a" : [ 1 , {"b":null} ] }',
    ):
        assert value in edited
    again = Body(edited)
    assert again.get("id_slot") == 3
    assert again.get("twice") == 2, "the last one counts, as everywhere"


def test_a_field_is_dropped_however_often_and_however_written() -> None:
    body = Body(b'{"id_slot": 1, "a": 2, "id\\u005fslot": 3}')
    body.drop("id_slot")
    assert json.loads(body.edited()) == {"a": 2}


def test_a_copy_is_edited_alone() -> None:
    body = Body(b'{"a": 1}')
    twin = body.copy()
    twin.set("a", 2)
    assert body.edited() == b'{"a": 1}'
    assert Body(twin.edited()).get("a") == 2


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"hello",
        b"[]",
        b'"text"',
        b"null",
        b"1",
        b'{"a": 1',
        b'{"a": 1}x',
        b"{'a': 1}",
        b'{"a": 01}',
        b'{"\xff": 1}',
        b"\xff\xfe{\x00}\x00",
        b'{"model": "m", "prompt": "\xff"}',
        b'{"model": "m", "prompt": "\xed\xa0\x80"}',
        b'{"model": "m", "prompt": "' + b"\xc3\xa9" * (1 << 19) + b'\xc3"}',
        b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 100_000,
    ],
)
def test_what_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRequest, match="the body is not a JSON object"):
        Body(raw)


def test_text_of_every_length_is_text() -> None:
    for fill in range(4):
        raw = b'{"a": "' + b"x" * fill + "\U0001f600".encode() * (1 << 19) + b'"}'
        assert Body(raw).edited() == raw


@pytest.mark.parametrize("value", [b'"\xff"', b"1e400", b'"\\ud800"'])
def test_a_field_that_is_read_and_cannot_be_is_named(value: bytes) -> None:
    try:
        body = Body(b'{"model": ' + value + b"}")
    except InvalidRequest:
        return
    with pytest.raises(InvalidRequest, match="model"):
        body.get("model")


def test_a_list_is_counted_without_reading_its_entries() -> None:
    body = Body(b'{"prompt": ["\xc3\xbf", [1, 1e400], {}], "other": "[1]", "empty": [], "none": null}')
    assert [bytes(entry) for entry in body.items("prompt") or ()] == [b'"\xc3\xbf"', b"[1, 1e400]", b"{}"]
    assert body.items("empty") == []
    for name in ("other", "none", "absent"):
        assert body.items(name) is None
