"""Strata's session file, format version 1, as far as it is read without the engine. All numbers are little-endian.

    0   64-byte header: magic, u32 version, u32 header size, u64 model and u64 config fingerprint, u64 payload length,
        two u64 zeros, u64 hash of the 56 bytes before it
    64  payload: 18 i64 geometry, i64 layer_lo, i64 layer_hi, i64 cvec, u64 n, n x i32 token ids, the live state, its
        checkpoints, the K/V layers
    -16 u64 hash of the payload, end mark

The hashes are Strata's own function, so only the engine can check them: what is checked here finds a file that is cut,
padded or of another kind, not a flipped byte.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import BinaryIO

from viiwork_core import CacheFile, CacheRefused, Segment, SegmentKind

MAGIC = b"STRSESS\x01"
END = b"STRSEND\x01"
VERSION = 1
HEADER = struct.Struct("<8sIIQQQQQQ")
GEOMETRY = struct.Struct("<21q")
COUNT = struct.Struct("<Q")
TRAILER = struct.Struct("<Q8s")
FRAME = HEADER.size + TRAILER.size
"""Bytes of a file that are not payload: 80."""

_IDS_AT = HEADER.size + GEOMETRY.size + COUNT.size


def read_session_file(path: Path) -> CacheFile:
    """Token count, token ids and segments of a session file. Blocking; reads the ids, not the K/V data.

    Raises CacheRefused for a file that is not a session file of version 1 or does not have the size it states.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            _check_frame(file, size, path)
            ids = _read_ids(file, size, path)
    except OSError as error:
        raise CacheRefused(f"{path.name}: cannot be read: {error.strerror}") from error
    return CacheFile(tokens=len(ids), ids=ids, segments=_segments(len(ids), size))


def _check_frame(file: BinaryIO, size: int, path: Path) -> None:
    if size < _IDS_AT + TRAILER.size:
        raise CacheRefused(f"{path.name}: {size} bytes are too few for a Strata session file")
    magic, version, header_size, _, _, payload, zero, also_zero, _ = HEADER.unpack(file.read(HEADER.size))
    if magic != MAGIC:
        raise CacheRefused(f"{path.name}: is not a Strata session file")
    if (version, header_size, zero, also_zero) != (VERSION, HEADER.size, 0, 0):
        raise CacheRefused(f"{path.name}: is not of session file version {VERSION}, or its header is damaged")
    if payload + FRAME != size:
        raise CacheRefused(f"{path.name}: has {size} bytes where its header promises {payload + FRAME}")
    file.seek(size - len(END))
    if file.read(len(END)) != END:
        raise CacheRefused(f"{path.name}: its end mark is missing")


def _read_ids(file: BinaryIO, size: int, path: Path) -> tuple[int, ...]:
    file.seek(HEADER.size + GEOMETRY.size)
    (n,) = COUNT.unpack(file.read(COUNT.size))
    room = (size - TRAILER.size - _IDS_AT) // 4
    if n > room:
        raise CacheRefused(f"{path.name}: claims {n} tokens where at most {room} fit")
    ids = struct.unpack(f"<{n}i", file.read(4 * n))
    if any(token < 0 for token in ids):
        raise CacheRefused(f"{path.name}: holds token ids below zero")
    return ids


def _segments(n: int, size: int) -> tuple[Segment, ...]:
    """Up to the ids, the state with the K/V layers, and the trailer. None is known to grow by whole rows only."""
    state, trailer = _IDS_AT + 4 * n, size - TRAILER.size
    ends = ((0, state), (state, trailer), (trailer, size))
    return tuple(Segment(start, end - start, SegmentKind.OPAQUE) for start, end in ends if end > start)
