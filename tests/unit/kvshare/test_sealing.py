"""Every kind of damage on the wire is refused."""

from __future__ import annotations

import json
import os
from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from viiwork_core.errors import CacheRefused
from viiwork_core.kvshare.sealing import (
    BLOCK,
    HEADER_LIMIT,
    Opener,
    TransferHeader,
    decode_header,
    encode_header,
    measure,
    seal,
)

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Bench

LAST = 1 << 31
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)


def opened(stream: bytes, key: bytes, step: int = 1 << 30) -> tuple[TransferHeader, bytes]:
    opener = Opener(key)
    plain = b"".join(
        bytes(block) for at in range(0, len(stream), step) for block in opener.feed(stream[at : at + step])
    )
    assert opener.finish() == blake3(plain).hexdigest()
    assert opener.header is not None
    return opener.header, plain


@pytest.mark.parametrize("size", [1, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_a_file_comes_back_whole_with_its_header(bench: Bench, size: int) -> None:
    data = os.urandom(size)
    header, plain = opened(b"".join(bench.pieces(data)), bench.key)
    assert plain == data
    assert header == bench.header(data)


@shared
@given(data=st.binary(min_size=1, max_size=300), step=st.integers(1, 50), cut=st.integers(1, 100))
def test_it_opens_however_it_is_cut_into_reads_and_frames(bench: Bench, data: bytes, step: int, cut: int) -> None:
    blocks = [data[at : at + cut] for at in range(0, len(data), cut)]
    assert opened(b"".join(bench.sealed(bench.header(data), blocks, data)), bench.key, step)[1] == data


def test_nothing_of_the_file_is_readable_and_no_two_streams_are_alike(bench: Bench) -> None:
    data = b"the quick brown fox " * 50
    one, two = b"".join(bench.pieces(data)[1:]), b"".join(bench.pieces(data)[1:])
    assert b"quick" not in one
    assert one[4:] != two[4:]


def test_every_single_bit_counts(bench: Bench) -> None:
    data = os.urandom(40)
    stream = b"".join(bench.sealed(bench.header(data), [data[:30], data[30:]], data))
    for at in range(len(stream) * 8):
        damaged = bytearray(stream)
        damaged[at // 8] ^= 1 << at % 8
        with pytest.raises(CacheRefused):
            opened(bytes(damaged), bench.key)


def test_a_stream_cut_anywhere_is_refused(bench: Bench) -> None:
    data = os.urandom(60)
    stream = b"".join(bench.sealed(bench.header(data), [data[:20], data[20:40], data[40:]], data))
    for length in range(len(stream)):
        with pytest.raises(CacheRefused):
            opened(stream[:length], bench.key)


def test_a_stream_cut_at_the_border_of_a_full_frame_is_refused(bench: Bench) -> None:
    pieces = bench.pieces(os.urandom(2 * BLOCK + 5))
    for count in range(len(pieces)):
        with pytest.raises(CacheRefused, match="cut short"):
            opened(b"".join(pieces[:count]), bench.key)


def test_a_cut_that_pretends_to_be_the_end_is_refused(bench: Bench) -> None:
    opening, first, last = bench.sealed(bench.header(b"a" * 32), [b"a" * 32], b"a" * 32)
    with pytest.raises(CacheRefused, match="frame 0 of the replica does not open"):
        opened(opening + bytes([first[0] | 0x80]) + first[1:], bench.key)
    with pytest.raises(CacheRefused, match="frame 1 of the replica does not open"):
        opened(opening + first + bytes([last[0] & 0x7F]) + last[1:], bench.key)


def test_frames_that_move_repeat_or_vanish_are_refused(bench: Bench) -> None:
    opening, a, b, c, last = bench.sealed(bench.header(b"x" * 3), [b"x"] * 3, b"x" * 3)
    for frames in ([b, a, c, last], [a, a, b, c, last], [a, c, last], [a, b, last], [last], [a, b, c, last, last]):
        with pytest.raises(CacheRefused):
            opened(b"".join([opening, *frames]), bench.key)


def test_a_frame_of_another_transfer_is_refused_even_with_the_same_header(bench: Bench) -> None:
    data = b"y" * 100
    one, two = bench.pieces(data), bench.pieces(data)
    with pytest.raises(CacheRefused, match="does not open"):
        opened(one[0] + two[1], bench.key)
    with pytest.raises(CacheRefused, match="does not open"):
        opened(two[0] + one[1], bench.key)


def test_another_key_is_refused(bench: Bench) -> None:
    with pytest.raises(CacheRefused, match="another key") as refusal:
        opened(b"".join(bench.pieces(b"z")), bytes(32))
    assert "secret" in refusal.value.remedy


@pytest.mark.parametrize("apart", [False, True])
def test_bytes_after_the_end_are_refused(bench: Bench, apart: bool) -> None:
    opener, stream = Opener(bench.key), b"".join(bench.pieces(b"z"))
    if apart:
        list(opener.feed(stream))
        stream = b""
    with pytest.raises(CacheRefused, match="follow the end"):
        list(opener.feed(stream + b"!"))
    with pytest.raises(CacheRefused):
        opener.finish()


def test_after_a_refusal_nothing_more_is_opened(bench: Bench) -> None:
    opening, first, last = bench.pieces(b"ab")
    opener = Opener(bench.key)
    with pytest.raises(CacheRefused):
        list(opener.feed(opening + last))
    with pytest.raises(CacheRefused):
        list(opener.feed(first + last))
    with pytest.raises(CacheRefused):
        opener.finish()


def test_the_header_is_not_shown_before_a_frame_has_proven_it(bench: Bench) -> None:
    opening, frame, end = bench.pieces(b"z")
    opener = Opener(bench.key)
    assert list(opener.feed(opening)) == []
    assert opener.header is None
    assert [bytes(block) for block in opener.feed(frame)] == [b"z"]
    assert (opener.header, opener.blake3) == (bench.header(b"z"), None)
    assert list(opener.feed(end)) == []
    assert opener.blake3 == bench.blake3(b"z")


def test_sizes_beyond_the_limits_are_refused_before_anything_is_collected(bench: Bench) -> None:
    with pytest.raises(CacheRefused, match="header claims"):
        list(Opener(bench.key).feed((HEADER_LIMIT + 1).to_bytes(4, "big")))
    opening = bench.pieces(b"z")[0]
    for size in (BLOCK + 17, 16, 0, LAST | 16, LAST | 47, LAST | 49, LAST | BLOCK):
        with pytest.raises(CacheRefused, match="frame 0"):
            list(Opener(bench.key).feed(opening + size.to_bytes(4, "big")))


def with_header(stream_header: bytes) -> bytes:
    return len(stream_header).to_bytes(4, "big") + stream_header


def altered(opening: bytes, change: dict[str, Any]) -> bytes:
    fields = {**json.loads(opening[4:]), **change}
    return with_header(json.dumps({name: value for name, value in fields.items() if value is not ...}).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"format": ...},
        {"salt": "00"},
        {"salt": ...},
        {"session": "../../etc/passwd"},
        {"session": "ab" * 65},
        {"session": "5E" * 16},
        {"session": "5e" * 16 + "\n"},
        {"model": ""},
        {"model": "a\nb"},
        {"model": "m" * 257},
        {"model": 7},
        {"fingerprint": "with space"},
        {"turn": 0},
        {"turn": -1},
        {"turn": 1.5},
        {"turn": True},
        {"turn": 1 << 60},
        {"tokens": 0},
        {"length": 0},
        {"blake3": "f" * 64},
        {"base": "f" * 63},
        {"start": -1},
        {"unknown": 1},
    ],
)
def test_a_header_that_is_not_exactly_right_is_refused(bench: Bench, change: dict[str, Any]) -> None:
    with pytest.raises(CacheRefused, match="header is not valid"):
        list(Opener(bench.key).feed(altered(bench.pieces(b"z")[0], change)))


@pytest.mark.parametrize("encoded", [b"{", b"[]", b"null", b"\xff", b'{"model":"\\ud800"}', b"{}", b'"' * 4096])
def test_a_header_that_is_no_json_object_of_ours_is_refused(bench: Bench, encoded: bytes) -> None:
    with pytest.raises(CacheRefused, match="header is not valid"):
        list(Opener(bench.key).feed(with_header(encoded)))


def test_a_header_with_another_true_looking_value_does_not_open(bench: Bench) -> None:
    opening, frame, _ = bench.pieces(b"z")
    for change in ({"turn": 2}, {"fingerprint": "e" * 64}, {"salt": "0" * 32}, {"session": "5f" * 16}):
        with pytest.raises(CacheRefused, match="does not open"):
            list(Opener(bench.key).feed(altered(opening, change) + frame))


@shared
@given(garbage=st.binary(max_size=200))
def test_garbage_is_only_ever_refused(bench: Bench, garbage: bytes) -> None:
    with pytest.raises(CacheRefused):
        opened(garbage, bench.key)


def test_a_header_that_no_receiver_would_take_is_refused_at_the_sender(bench: Bench) -> None:
    with pytest.raises(CacheRefused, match="turn"):
        bench.pieces(b"z", turn=0)


def test_a_block_over_a_frame_is_a_mistake(bench: Bench) -> None:
    with pytest.raises(ValueError, match="over the frame"):
        bench.sealed(bench.header(b"z"), [bytes(BLOCK + 1)], b"z")


def test_sealing_takes_one_block_at_a_time_and_the_hash_after_the_last(bench: Bench) -> None:
    taken: list[int] = []

    def blocks() -> Any:
        for number in range(10):
            taken.append(number)
            yield b"x"

    def digest() -> bytes:
        taken.append(-1)
        return bytes(32)

    stream = seal(bench.key, bench.header(b"x" * 10), blocks(), digest)
    assert len(list(islice(stream, 3))) == 3
    assert taken == [0, 1]
    assert len(list(stream)) == 9
    assert taken == [*range(10), -1]


def test_a_stored_header_reads_back_and_the_largest_one_fits(bench: Bench) -> None:
    longest = "\U0001f9ca" * 256
    names = {"model": longest, "group": longest, "fingerprint": "f" * 512}
    header = bench.stored(b"z", longest, **names)
    assert decode_header(encode_header(header)) == header
    opening = bench.pieces(b"z", base="f" * 64, start=1 << 53, **names)[0]
    assert len(opening) <= 4 + HEADER_LIMIT
    assert "salt" not in msgspec.json.decode(encode_header(header))


def test_measuring_a_file_gives_what_its_header_says(bench: Bench, tmp_path: Path) -> None:
    data = os.urandom(BLOCK + 77)
    (tmp_path / "file").write_bytes(data)
    header = bench.stored(data)
    assert measure(tmp_path / "file") == (header.length, header.blake3)
