"""Reading a cache file without MLX."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from viiwork_core import CacheRefused, SegmentKind
from viiwork_mlx.cache_file import read_cache_file

TOKENS = 5
METADATA = {"0.format": "viiwork-mlx-1", "0.tokens": "[7, 8, 9, 10, 11]", "1.0": "KVCache", "1.1": "RotatingKVCache"}
KEYS = [1, 2, TOKENS, 4]  # 2 heads of 5 rows of 16 bytes
TENSORS: dict[str, Any] = {
    "1.0": {"dtype": "F32", "shape": KEYS, "data_offsets": [324, 484]},
    "0.0": {"dtype": "F32", "shape": KEYS, "data_offsets": [164, 324]},
    "0.1": {"dtype": "F32", "shape": KEYS, "data_offsets": [4, 164]},
    "0.2": {"dtype": "I32", "shape": [], "data_offsets": [0, 4]},
}
SIZE = 484


def write(path: Path, document: object, size: int = SIZE) -> Path:
    header = json.dumps(document).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(size))
    return path


def document(**metadata: str) -> dict[str, Any]:
    return {**TENSORS, "__metadata__": METADATA | {name.replace("_", "."): value for name, value in metadata.items()}}


def test_tokens_and_segments(tmp_path: Path) -> None:
    path = write(tmp_path / "file", document())
    start = path.stat().st_size - SIZE
    file = read_cache_file(path)
    assert (file.tokens, file.ids) == (TOKENS, (7, 8, 9, 10, 11))
    assert [(each.offset, each.length, each.kind) for each in file.segments] == [
        (0, start + 4, SegmentKind.OPAQUE),  # the header with the ids, and the scalar
        (start + 4, 80, SegmentKind.ROWS),  # values of layer 0, head by head
        (start + 84, 80, SegmentKind.ROWS),
        (start + 164, 80, SegmentKind.ROWS),  # its keys
        (start + 244, 80, SegmentKind.ROWS),
        (start + 324, 160, SegmentKind.OPAQUE),  # a rotating cache overwrites its rows
    ]


def test_rows_with_room_behind_them_are_opaque(tmp_path: Path) -> None:
    path = write(tmp_path / "file", document(**{"0_tokens": "[7, 8, 9, 10]"}))
    assert [each.kind for each in read_cache_file(path).segments] == [SegmentKind.OPAQUE]


@pytest.mark.parametrize("cut", [0, 7, 8, 100, -1])
def test_a_file_that_is_cut_short_is_refused(tmp_path: Path, cut: int) -> None:
    path = write(tmp_path / "file", document())
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CacheRefused, match="cache file file is not one of MLX, or is damaged"):
        read_cache_file(path)


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        document(**{"0_format": "viiwork-mlx-9"}),
        document(**{"0_tokens": "[1, -2]"}),
        document(**{"0_tokens": "[1.5]"}),
        document(**{"0_tokens": "7"}),
        {**document(), "__metadata__": {"0.format": "viiwork-mlx-1", "0.tokens": "[7]"}},  # layers without a class
        {**document(), "../x": TENSORS["0.2"]},
        {**document(), "0.3": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},  # over another tensor
        {**document(), "0.3": {"dtype": "F32", "shape": [1], "data_offsets": [488, 492]}},  # behind a gap
        {**document(), "0.3": {"dtype": "F32", "shape": [1], "data_offsets": [484, 480]}},
        {**document(), "0.3": {"dtype": "F32", "shape": "wide", "data_offsets": [484, 484]}},
    ],
)
def test_a_header_that_makes_no_sense_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(CacheRefused, match="not one of MLX, or is damaged"):
        read_cache_file(write(tmp_path / "file", content))


def test_a_header_that_is_nested_without_end_is_refused(tmp_path: Path) -> None:
    header = b'{"a":' + b"[" * 200_000
    path = tmp_path / "file"
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(CacheRefused):
        read_cache_file(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CacheRefused, match="cannot be read: No such file"):
        read_cache_file(tmp_path / "none")
