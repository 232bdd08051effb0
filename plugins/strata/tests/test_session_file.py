"""The session file's layout, against files written here byte by byte."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from viiwork_core import CacheRefused, SegmentKind
from viiwork_strata.session_file import read_session_file

IDS = (7, 0, 151_935)
REST = b"state, checkpoints, layers"


def session_file(ids: tuple[int, ...] = IDS, rest: bytes = REST) -> bytearray:
    """Strata: "0 magic "STRSESS\\x01" (8); 8 u32 version=1; 12 u32 header size=64; 16 u64 model fingerprint; 24 u64
    config fingerprint; 32 u64 payload length; 40..55 two reserved u64 = 0; 56 u64 hash of the first 56 bytes. Then
    payload, then u64 payload hash, then "STRSEND\\x01""; "Payload start: 18 i64 geometry, i64 layer_lo, layer_hi, cvec;
    ... u64 n + n x i32 TOKEN IDS"."""
    payload = struct.pack("<18q", *range(18)) + struct.pack("<3q", 0, 48, 0)
    payload += struct.pack("<Q", len(ids)) + struct.pack(f"<{len(ids)}i", *ids) + rest
    head = b"STRSESS\x01" + struct.pack("<II", 1, 64) + struct.pack("<QQQQQ", 11, 12, len(payload), 0, 0)
    return bytearray(head + struct.pack("<Q", 13) + payload + struct.pack("<Q", 14) + b"STRSEND\x01")


def written(folder: Path, data: bytearray) -> Path:
    path = folder / "one.sess"
    path.write_bytes(data)
    return path


def test_ids_are_read_and_segments_cover_the_file(tmp_path: Path) -> None:
    data = session_file()
    file = read_session_file(written(tmp_path, data))
    assert (file.tokens, file.ids) == (3, IDS)
    ends = [segment.offset + segment.length for segment in file.segments]
    assert [segment.offset for segment in file.segments] == [0, *ends[:-1]]
    assert ends[-1] == len(data)
    assert {segment.kind for segment in file.segments} == {SegmentKind.OPAQUE}


@pytest.mark.parametrize("ids", [(), (1,)])
def test_a_file_may_end_with_its_ids(tmp_path: Path, ids: tuple[int, ...]) -> None:
    file = read_session_file(written(tmp_path, session_file(ids, b"")))
    assert file.ids == ids
    assert all(segment.length for segment in file.segments)


@pytest.mark.parametrize("length", [0, 8, 63, 64, 100, 239, 250, -1, -8, -16])
def test_a_file_cut_short_is_refused(tmp_path: Path, length: int) -> None:
    with pytest.raises(CacheRefused, match=r"one\.sess: "):
        read_session_file(written(tmp_path, session_file()[:length]))


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (0, "not a Strata session file"),
        (8, "version 1"),
        (12, "header is damaged"),
        (32, "promises"),
        (40, "header is damaged"),
        (48, "header is damaged"),
        (-1, "end mark"),
    ],
)
def test_a_garbled_frame_is_refused(tmp_path: Path, at: int, words: str) -> None:
    """Strata: "File size = payload + 80"."""
    data = session_file()
    data[at] ^= 0x55
    with pytest.raises(CacheRefused, match=words):
        read_session_file(written(tmp_path, data))


def test_a_count_of_tokens_that_cannot_fit_is_refused(tmp_path: Path) -> None:
    data = session_file()
    struct.pack_into("<Q", data, 64 + 21 * 8, 1 << 60)
    with pytest.raises(CacheRefused, match="claims 1152921504606846976 tokens"):
        read_session_file(written(tmp_path, data))


def test_ids_below_zero_and_padded_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CacheRefused, match="below zero"):
        read_session_file(written(tmp_path, session_file((3, -4))))
    with pytest.raises(CacheRefused, match="promises"):
        read_session_file(written(tmp_path, session_file() + b"\0" * 8 + b"STRSEND\x01"))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CacheRefused, match="cannot be read"):
        read_session_file(tmp_path / "none.sess")
