"""Slot files, made to the letter of the format."""

from __future__ import annotations

import struct
from dataclasses import dataclass

ROW = 64
LAYERS = 2


@dataclass(frozen=True)
class Shape:
    """How a made-up file is laid out."""

    version: int = 2
    packed: bool = False
    transposed: bool = False
    words: int = 0
    streams: int = 2
    slot: int = 0
    caches: int = 1


def cache(shape: Shape, cells: int) -> bytes:
    layer = struct.pack("<iQ", 1, ROW) + bytes(ROW * cells)
    column = struct.pack("<iII", 1, 2, ROW // 2) + bytes(ROW * cells)
    body = struct.pack("<I", cells) + b"".join(struct.pack("<iIi", n, 1, shape.slot) for n in range(cells))
    body += struct.pack("<II", shape.transposed, LAYERS) + bytes(4 * shape.words)
    body += layer * LAYERS + (column if shape.transposed else layer) * LAYERS
    return struct.pack("<I", shape.streams) + b"".join(
        body if stream == shape.slot else bytes(4) for stream in range(shape.streams)
    )


def made(shape: Shape, ids: tuple[int, ...]) -> bytes:
    words = (-1, 1, len(ids), *ids, 0) if shape.packed else ids
    head = struct.pack(f"<III{len(words)}i", 0x67677371, shape.version, len(words), *words)
    return head + cache(shape, len(ids)) * shape.caches
