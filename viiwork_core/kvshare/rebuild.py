"""The other end of a delta: a file made anew from the base that lies here, and the blocks that came."""

from __future__ import annotations

import os
import struct
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from viiwork_core.errors import BaseMissing, CacheRefused
from viiwork_core.kvshare.delta import COPY, COPY_HEAD, LITERAL, LITERAL_HEAD, PATCH, PATCH_HEAD, PIECE, WINDOW
from viiwork_core.kvshare.sealing import BLOCK

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

Block = bytes | memoryview


class Rebuild:
    """Carries out a delta's blocks. Holds a few MiB at most, whatever they say. Everything here blocks on the disk."""

    def __init__(self, base: Path) -> None:
        """Raises BaseMissing when the base cannot be opened."""
        try:
            self._base = os.open(base, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError as error:
            raise BaseMissing(f"the base of the delta cannot be read: {error.strerror}") from error
        self._size = os.fstat(self._base).st_size

    def close(self) -> None:
        """To be called once."""
        os.close(self._base)

    def pieces(self, blocks: Iterable[Block]) -> Iterator[Block]:
        """The bytes of the file that some whole blocks make. Raises CacheRefused for what no delta says."""
        for block in blocks:
            at = 0
            while at < len(block):
                made, at = self._carried_out(block, at)
                yield from made

    def _carried_out(self, block: Block, at: int) -> tuple[Iterable[Block], int]:
        """What the instruction at `at` makes, and where the next one is."""
        kind = block[at]
        if kind == COPY:
            _, length, offset = _head(COPY_HEAD, block, at)
            return self._copied(offset, length), at + COPY_HEAD.size
        if kind == LITERAL:
            _, length = _head(LITERAL_HEAD, block, at)
            return (_body(block, at + LITERAL_HEAD.size, length),), at + LITERAL_HEAD.size + length
        if kind == PATCH:
            _, length, offset, size, packed = _head(PATCH_HEAD, block, at)
            body = _body(block, at + PATCH_HEAD.size, packed)
            return (self._patched(body, length, offset, size),), at + PATCH_HEAD.size + packed
        raise CacheRefused(f"the delta has an instruction of kind {kind}, which is not known here")

    def _copied(self, offset: int, length: int) -> Iterator[bytes]:
        self._check(offset, length)
        for start in range(offset, offset + length, BLOCK):
            yield self._read(start, min(BLOCK, offset + length - start))

    def _patched(self, packed: Block, length: int, offset: int, size: int) -> bytes:
        self._check(offset, size)
        if not (0 < length <= PIECE and size <= WINDOW):
            raise CacheRefused(f"the delta packs {length} bytes with {size} of its base: more than is allowed")
        try:
            before = zstd.ZstdDict(self._read(offset, size), is_raw=True)
            unpacker = zstd.ZstdDecompressor(zstd_dict=before.as_prefix)
            data = unpacker.decompress(packed, length)
        except (zstd.ZstdError, ValueError) as error:
            raise CacheRefused("a packed part of the delta does not unpack") from error
        if len(data) != length or not unpacker.eof or unpacker.unused_data:
            raise CacheRefused("a packed part of the delta has not the length it states")
        return data

    def _check(self, offset: int, length: int) -> None:
        if not 0 < length <= self._size - offset:
            raise CacheRefused("the delta names a part of its base that is not there")

    def _read(self, offset: int, length: int) -> bytes:
        try:
            data = os.pread(self._base, length, offset)
        except OSError as error:
            raise BaseMissing(f"the base of the delta cannot be read: {error.strerror}") from error
        if len(data) != length:
            raise BaseMissing("the base of the delta shrank while it was read")
        return data


def _head(head: struct.Struct, block: Block, at: int) -> tuple[int, ...]:
    try:
        return head.unpack_from(block, at)
    except struct.error:
        raise CacheRefused("a block of the delta ends inside an instruction") from None


def _body(block: Block, at: int, length: int) -> Block:
    if not 0 < length <= len(block) - at:
        raise CacheRefused("a block of the delta ends inside an instruction")
    return block[at : at + length]
