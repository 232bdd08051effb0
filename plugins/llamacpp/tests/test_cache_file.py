"""Slot files, made to the letter of the format, as they are read."""

from __future__ import annotations

import random
import struct
import sys
from pathlib import Path

import pytest

from viiwork_core import CacheRefused, SegmentKind
from viiwork_llamacpp.cache_file import LlamaCacheFile, read_cache_file

sys.path.insert(0, str(Path(__file__).parent))

from slot_files import LAYERS, ROW, Shape, cache, made  # found by the line above


def read(tmp_path: Path, data: bytes) -> LlamaCacheFile:
    path = tmp_path / "slot.bin"
    path.write_bytes(data)
    return read_cache_file(path)


IDS = tuple(range(100, 130))


@pytest.mark.parametrize(
    "shape",
    [
        Shape(),
        Shape(packed=True),
        Shape(version=4, packed=True, words=2),
        Shape(version=3, packed=True),
        Shape(version=3, packed=True, words=2),
        Shape(transposed=True),
        Shape(slot=1),
        Shape(streams=1),
        Shape(caches=2),
        Shape(version=4, packed=True, words=2, caches=2, transposed=True),
    ],
)
def test_every_layout(tmp_path: Path, shape: Shape) -> None:
    data = made(shape, IDS)
    file = read(tmp_path, data)
    assert (file.tokens, file.ids, file.sliding) == (30, IDS, shape.caches == 2)
    rows = [segment for segment in file.segments if segment.kind is SegmentKind.ROWS]
    assert [segment.length for segment in rows] == [ROW * 30] * (shape.caches * LAYERS * (1 if shape.transposed else 2))
    end = 0
    for segment in file.segments:
        assert segment.offset == end
        assert segment.length > 0
        end += segment.length
    assert end == len(data)


def test_an_empty_save_is_read_as_empty(tmp_path: Path) -> None:
    data = struct.pack("<IIIIII", 0x67677371, 2, 0, 2, 0, 0)
    file = read(tmp_path, data)
    assert (file.tokens, file.ids) == (0, ())


@pytest.mark.parametrize("shape", [Shape(), Shape(version=4, packed=True, words=2), Shape(version=3), Shape(caches=2)])
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, shape: Shape) -> None:
    data = made(shape, IDS)
    whole_first_cache = len(made(Shape(**{**vars(shape), "caches": 1}), IDS)) if shape.caches == 2 else -1
    cuts = {1, len(data) // 2, *range(0, len(data), 97), *range(1, 40), *range(len(data) - 20, len(data))}
    for length in cuts - {whole_first_cache}:
        with pytest.raises(CacheRefused):
            read(tmp_path, data[:length])


@pytest.mark.parametrize("tail", [b"\0", bytes(4), b"junk" * 10])
def test_a_file_with_more_behind_it_is_refused(tmp_path: Path, tail: bytes) -> None:
    with pytest.raises(CacheRefused):
        read(tmp_path, made(Shape(), IDS) + tail)


@pytest.mark.parametrize(
    ("offset", "word"),
    [
        (0, 0x46554747),  # another magic
        (4, 1),  # older and newer versions
        (4, 5),
        (8, 29),  # token count
        (8, 31),
        (8, 0xFFFFFFFF),
        (12, 0xFFFFFFFF),  # a token that is none
        (12 + 4 * 30, 0),  # streams
        (12 + 4 * 30, 0xFFFFFFFF),
        (16 + 4 * 30, 29),  # cells
        (16 + 4 * 30, 0xFFFFFFFF),
        (20 + 4 * 30 + 4, 2),  # sequences of the first cell
        (20 + 16 * 30, 2),  # V layout
        (24 + 16 * 30, 3),  # layers
        (24 + 16 * 30, 0xFFFFFFFF),
        (32 + 16 * 30, 0),  # row bytes
        (32 + 16 * 30, 0xFFFFFFFF),
        (36 + 16 * 30, 0xFFFFFFFF),
    ],
)
def test_a_wrong_figure_is_refused(tmp_path: Path, offset: int, word: int) -> None:
    data = bytearray(made(Shape(), IDS))
    struct.pack_into("<I", data, offset, word)
    with pytest.raises(CacheRefused):
        read(tmp_path, bytes(data))


@pytest.mark.parametrize("words", [(-1, 1, 4, 5, 6, 7, 0), (-1, 1, 3, 5, 6, 7, 1), (-1, 2, 3, 5, 6, 7, 0)])
def test_a_packed_list_that_does_not_add_up(tmp_path: Path, words: tuple[int, ...]) -> None:
    data = struct.pack("<III7i", 0x67677371, 2, 7, *words) + cache(Shape(), 3)
    with pytest.raises(CacheRefused):
        read(tmp_path, data)


def test_noise_is_refused_and_nothing_else_happens(tmp_path: Path) -> None:
    rng = random.Random(7)
    for _ in range(200):
        head = struct.pack("<II", 0x67677371, rng.choice((2, 3, 4)))
        with pytest.raises(CacheRefused):
            read(tmp_path, head + rng.randbytes(rng.randrange(400)))


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(CacheRefused, match="cannot be read"):
        read_cache_file(tmp_path / "absent.bin")
    with pytest.raises(CacheRefused, match="cannot be read"):
        read_cache_file(tmp_path)
