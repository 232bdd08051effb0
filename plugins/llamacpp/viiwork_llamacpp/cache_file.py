"""llama-server's slot file: which tokens it holds, and which parts of it only grow from turn to turn.

Little endian throughout:

    u32 magic, u32 version, u32 n, i32 token[n]
    for each KV cache (a model with sliding-window layers has two, the full one first):
        u32 streams
        for each stream:
            u32 cells                               0: nothing more of this stream
            cells times: i32 position, u32 1, i32 sequence
            u32 v_transposed, u32 layers            version 4: two words more
            layers times: i32 type, u64 row bytes, cells rows               K
            layers times: i32 type, u64 row bytes, cells rows               V, or, transposed:
                          i32 type, u32 element bytes, u32 channels, channels rows of cells elements

Newer builds pack the token list: -1, 1, n, n tokens, 0. Nothing in the file says for which model it is, and nothing
protects it. Reads go by position and not through a memory map: the engine writes its files in place, and a mapped
file that shrinks kills the process that looks at it.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from viiwork_core import CacheFile, CacheRefused, Segment, SegmentKind

MAGIC = 0x67677371
LAYER_WORDS = {2: (0,), 3: (0, 8), 4: (8,)}
"""Bytes between the layer count and the first layer, by file version; several where the version does not tell."""

MAX_TOKENS = 1 << 24
MAX_STREAMS = 256
MAX_CACHES = 2
MAX_LAYERS = 4096
PACKED_MARK, PACKED_LISTS = -1, 1

Span = tuple[int, int]
"""Offset and length."""


@dataclass(frozen=True, slots=True)
class LlamaCacheFile(CacheFile):
    """A slot file, with what the planner need not know."""

    sliding: bool = False
    """It holds a sliding-window cache: restored, it is right only for a prompt that extends all its tokens."""


class _Reader:
    """Reads forward, and refuses to pass the end."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.size = os.fstat(descriptor).st_size
        self.offset = 0

    def skip(self, length: int) -> None:
        if length > self.size - self.offset:
            raise CacheRefused(f"the cache file is cut short: {self.size} bytes, and more are announced")
        self.offset += length

    def take(self, length: int) -> bytes:
        start = self.offset
        self.skip(length)
        data = os.pread(self._descriptor, length, start)
        if len(data) != length:
            raise CacheRefused("the cache file shrank while it was read")
        return data

    def one(self, kind: str) -> int:
        (value,) = struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}")))
        return int(value)

    def bounded(self, what: str, low: int, high: int) -> int:
        value = self.one("I")
        if not low <= value <= high:
            raise CacheRefused(f"the cache file claims {value} {what}")
        return value


def read_cache_file(path: Path) -> LlamaCacheFile:
    """Read all but the rows. Raises CacheRefused for anything that is not a whole slot file of a plain KV cache."""
    try:
        with path.open("rb") as file:
            return _file(_Reader(file.fileno()))
    except OSError as error:
        raise CacheRefused(f"the cache file cannot be read: {error.strerror}") from error


def _file(reader: _Reader) -> LlamaCacheFile:
    if reader.one("I") != MAGIC:
        raise CacheRefused("not a llama-server slot file")
    version = reader.one("I")
    if version not in LAYER_WORDS:
        raise CacheRefused(f"a slot file of version {version}, which is not known here")
    count = reader.bounded("tokens", 0, MAX_TOKENS)
    ids = _ids(struct.unpack(f"<{count}i", reader.take(4 * count)))
    caches = _caches(reader, LAYER_WORDS[version])
    segments = tuple(_segments([row for rows in caches for row in rows], reader.size))
    return LlamaCacheFile(len(ids), ids, segments, sliding=len(caches) > 1)


def _ids(words: tuple[int, ...]) -> tuple[int, ...]:
    if len(words) >= 4 and words[:2] == (PACKED_MARK, PACKED_LISTS):
        if words[2] != len(words) - 4 or words[-1] != 0:
            raise CacheRefused("the slot file's token list does not add up, or holds more than text")
        words = words[3:-1]
    if any(word < 0 for word in words):
        raise CacheRefused("the slot file holds tokens that stand for no text")
    return words


def _caches(reader: _Reader, layouts: tuple[int, ...]) -> list[list[Span]]:
    """The rows of each cache, in the first layout that fits to the last byte."""
    start, *others = layouts
    begin = reader.offset
    try:
        return _caches_to_end(reader, start)
    except CacheRefused:
        if not others:
            raise
        reader.offset = begin
        return _caches(reader, tuple(others))


def _caches_to_end(reader: _Reader, layer_words: int) -> list[list[Span]]:
    caches = [list(_cache(reader, layer_words))]
    while reader.offset < reader.size:
        if len(caches) == MAX_CACHES:
            raise CacheRefused(f"{reader.size - reader.offset} bytes follow the cache file's end")
        caches.append(list(_cache(reader, layer_words)))
    return caches


def _cache(reader: _Reader, layer_words: int) -> Iterator[Span]:
    for _ in range(reader.bounded("streams", 1, MAX_STREAMS)):
        if cells := reader.bounded("cells", 0, MAX_TOKENS):
            _cells(reader, cells)
            yield from _layers(reader, cells, layer_words)


def _cells(reader: _Reader, cells: int) -> None:
    for position, sequences, _ in struct.iter_unpack("<iIi", reader.take(12 * cells)):
        if position < 0 or sequences != 1:
            raise CacheRefused("the slot file's cells are not those of one plain sequence")


def _layers(reader: _Reader, cells: int, layer_words: int) -> Iterator[Span]:
    transposed = reader.bounded("as its V layout", 0, 1)
    layers = reader.bounded("layers", 1, MAX_LAYERS)
    reader.skip(layer_words)
    for _ in range(layers):
        yield _rows(reader, cells)
    for _ in range(layers):
        if transposed:
            _channels(reader, cells)
        else:
            yield _rows(reader, cells)


def _rows(reader: _Reader, cells: int) -> Span:
    reader.skip(4)
    length = _positive(reader.one("Q")) * cells
    span = (reader.offset, length)
    reader.skip(length)
    return span


def _channels(reader: _Reader, cells: int) -> None:
    reader.skip(4)
    element, channels = _positive(reader.one("I")), _positive(reader.one("I"))
    reader.skip(element * channels * cells)


def _positive(size: int) -> int:
    if size == 0:
        raise CacheRefused("the cache file claims rows of no size")
    return size


def _segments(rows: list[Span], size: int) -> Iterator[Segment]:
    end = 0
    for offset, length in rows:
        yield Segment(end, offset - end, SegmentKind.OPAQUE)
        yield Segment(offset, length, SegmentKind.ROWS)
        end = offset + length
    if end < size:
        yield Segment(end, size - end, SegmentKind.OPAQUE)
