"""Deltas: a cache file told as what it shares with an earlier one, and the rest.

    delta       := block...                         each at most 1 MiB, and whole in itself
    block       := instruction...
    instruction := 0  u64 length  u64 offset                                     so many bytes of the base
                 | 1  u32 length  bytes                                          new bytes
                 | 2  u32 length  u64 offset  u32 size  u32 packed  bytes        zstd, with that part of the base before

Integers are big endian. Carried out one after the other, the instructions make the file from its first byte to its
last. Files are compared segment by segment, as their format lays them out. What two segments begin with alike is named
and not sent, so that rows which were appended go as they are; where the likeness ends before the old segment does, zstd
packs the rest piece by piece, each with the part of the old segment before it that the piece lies near.

Nothing here depends on anything but the two files: the same two give the same blocks, which is what lets a broken
transfer go on.
"""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from viiwork_core.contracts.cache import Segment, SegmentKind
from viiwork_core.errors import CacheRefused
from viiwork_core.kvshare.sealing import BLOCK

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

COPY, LITERAL, PATCH = 0, 1, 2
COPY_HEAD: Final = struct.Struct(">BQQ")
LITERAL_HEAD: Final = struct.Struct(">BI")
PATCH_HEAD: Final = struct.Struct(">BIQII")

PIECE: Final = 4 << 20
"""Bytes of the new file that are packed at a time."""

MARGIN: Final = 1 << 20
"""Bytes of the base on either side of where a piece is expected that are looked at as well."""

WINDOW: Final = PIECE + 2 * MARGIN
"""Bytes of the base that a piece is packed with, at most."""

_WORTH = 64
"""Bytes from which on likeness is worth an instruction, and the least that zstd takes for a base."""

_PROBE, _PROBES = 32, 16
_PACKED = BLOCK - PATCH_HEAD.size
_OPTIONS: Final[Mapping[int, int]] = {
    zstd.CompressionParameter.compression_level: 1,
    zstd.CompressionParameter.window_log: 24,
    zstd.CompressionParameter.enable_long_distance_matching: 1,
}

Layout = Sequence[Segment]
"""Segments of a file, without a gap; none: it is taken as one."""


@dataclass(frozen=True, slots=True)
class _Span:
    """A stretch of a file."""

    start: int
    length: int

    @property
    def end(self) -> int:
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class _Step:
    """One instruction, and how many bytes of the file it makes."""

    makes: int
    code: bytes


def delta_blocks(
    path: Path, layout: Layout, base: Path, base_layout: Layout, *, start: int = 0
) -> Generator[bytes, None, None]:
    """The blocks that make `path` from `base`, from byte `start` on, which must be where a block begins.

    Blocking: reads both files, in pieces. Raises OSError, and CacheRefused when no block begins at `start`.
    """
    new, old = os.open(path, os.O_RDONLY), -1
    try:
        old = os.open(base, os.O_RDONLY)
        made = 0
        for step in _blocks(_steps(new, layout, old, base_layout)):
            if made >= start:
                yield step.code
            elif made + step.makes > start:
                raise CacheRefused(f"no block of the delta begins at byte {start}")
            made += step.makes
    finally:
        os.close(new)
        if old >= 0:
            os.close(old)


def _blocks(steps: Iterable[_Step]) -> Iterator[_Step]:
    """The instructions, put together as long as they fit into a block."""
    makes, codes, size = 0, list[bytes](), 0
    for step in steps:
        if size + len(step.code) > BLOCK:
            yield _Step(makes, b"".join(codes))
            makes, codes, size = 0, [], 0
        makes, size = makes + step.makes, size + len(step.code)
        codes.append(step.code)
    if codes:
        yield _Step(makes, b"".join(codes))


def _steps(new: int, layout: Layout, old: int, base_layout: Layout) -> Iterator[_Step]:
    ours, theirs = _spans(new, layout), _spans(old, base_layout)
    if len(ours) != len(theirs):
        ours, theirs = _spans(new, ()), _spans(old, ())
    for ahead, behind in zip(ours, theirs, strict=True):
        yield from _segment(new, ahead, old, behind)


def _spans(file: int, layout: Layout) -> list[_Span]:
    size = os.fstat(file).st_size
    spans = [_Span(one.offset, one.length) for one in layout or (Segment(0, size, SegmentKind.OPAQUE),)]
    if [span.end for span in spans] != [*(span.start for span in spans[1:]), size] or spans[0].start:
        raise CacheRefused("the segments of a cache file do not follow each other to its end")
    return spans


def _segment(new: int, ahead: _Span, old: int, behind: _Span) -> Iterator[_Step]:
    alike = _alike(new, ahead, old, behind)
    if alike < _WORTH:
        alike = 0
    else:
        yield _Step(alike, COPY_HEAD.pack(COPY, alike, behind.start))
    rest, left = _Span(ahead.start + alike, ahead.length - alike), behind.length - alike
    if left < _WORTH:
        yield from _literals(new, rest)
    else:
        yield from _packed(new, rest, old, _Span(behind.start + alike, left))


def _alike(new: int, ahead: _Span, old: int, behind: _Span) -> int:
    """How many bytes the two begin with alike."""
    most, done = min(ahead.length, behind.length), 0
    while done < most:
        size = min(BLOCK, most - done)
        mine, yours = _read(new, ahead.start + done, size), _read(old, behind.start + done, size)
        if mine != yours:
            return done + _difference(mine, yours)
        done += size
    return done


def _difference(mine: bytes, yours: bytes) -> int:
    """Where two pieces of one length, which differ, first do."""
    low, high = 0, len(mine)
    while high - low > 1:
        middle = (low + high) // 2
        if mine[low:middle] == yours[low:middle]:
            low = middle
        else:
            high = middle
    return low


def _literals(new: int, span: _Span) -> Iterator[_Step]:
    most = BLOCK - LITERAL_HEAD.size
    for at in range(span.start, span.end, most):
        data = _read(new, at, min(most, span.end - at))
        yield _Step(len(data), LITERAL_HEAD.pack(LITERAL, len(data)) + data)


def _packed(new: int, ahead: _Span, old: int, behind: _Span) -> Iterator[_Step]:
    near = behind.start
    for at in range(ahead.start, ahead.end, PIECE):
        data = _read(new, at, min(PIECE, ahead.end - at))
        window = _window(behind, near)
        before = _read(old, window.start, window.length)
        packed = zstd.compress(data, options=_OPTIONS, zstd_dict=zstd.ZstdDict(before, is_raw=True).as_prefix)
        if len(packed) <= min(_PACKED, len(data)):
            head = PATCH_HEAD.pack(PATCH, len(data), window.start, window.length, len(packed))
            yield _Step(len(data), head + packed)
        else:
            yield from _literals(new, _Span(at, len(data)))
        reached = _reached(data, before, near - window.start)
        # Where nothing tells, the old part is taken to have grown evenly.
        even = behind.start + (at + len(data) - ahead.start) * behind.length // ahead.length
        near = even if reached is None else window.start + reached


def _window(behind: _Span, near: int) -> _Span:
    """The part of the old segment to look at for a piece that is expected at `near`; never none."""
    end = min(behind.end, max(near, behind.start) + PIECE + MARGIN)
    start = max(behind.start, min(near - MARGIN, end - _WORTH))
    return _Span(start, end - start)


def _reached(data: bytes, before: bytes, expected: int) -> int | None:
    """Where in `before` the piece's end lies, told by some bytes from near it; None: nowhere.

    The piece was expected to begin at `expected`: no more than the margin around it is searched, which takes about a
    millisecond, in which no other thread runs.
    """
    for number in range(_PROBES):
        at = len(data) - _PROBE - number * len(data) // _PROBES
        probe = data[max(0, at) : at + _PROBE]
        if len(probe) < _PROBE or len(set(probe)) <= 4:
            continue
        found = before.find(probe, max(0, expected + at - MARGIN), max(0, expected + at + MARGIN))
        if found >= 0:
            return found + len(data) - at
    return None


def _read(file: int, start: int, length: int) -> bytes:
    parts, got = list[bytes](), 0
    while got < length:
        part = os.pread(file, length - got, start + got)
        if not part:
            raise CacheRefused("a cache file shrank while it was compared")
        parts.append(part)
        got += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
