"""The cache file, read without MLX: a safetensors file as mlx_lm's save_prompt_cache writes it.

    8 bytes  little-endian length of the header
    header   JSON: {"LAYER.PART": {"dtype", "shape", "data_offsets"}, ..., "__metadata__": {...}}
    data     the tensors, without gaps

The metadata are strings: "0.format" and "0.tokens" (a JSON list of token ids) are the wrapper's, "1.LAYER" is the
class of a layer's cache, "2..." is mlx_lm's own.

Keys and values of a layer are tensors [1, heads, tokens, width], stored head by head: a new token adds a row to the end
of each head's stretch, not to the end of the tensor. So each head's stretch is a segment of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, BinaryIO

from pydantic import BaseModel, Field, NonNegativeInt, TypeAdapter

from viiwork_core import CacheFile, CacheRefused, Segment, SegmentKind

FORMAT = "viiwork-mlx-1"
HEADER_LIMIT = 100_000_000
"""Bytes; the limit of the safetensors format."""

ROW_CLASSES = frozenset({"KVCache", "QuantizedKVCache"})
"""Layer caches that only ever append. A rotating cache overwrites, a recurrent state changes as a whole."""


class Entry(BaseModel, strict=True):
    """A tensor as the header's JSON describes it."""

    shape: list[NonNegativeInt]
    data_offsets: Annotated[list[NonNegativeInt], Field(min_length=2, max_length=2)]


DOCUMENT = TypeAdapter(dict[str, object])
METADATA = TypeAdapter(dict[str, str])
ENTRIES = TypeAdapter(dict[Annotated[str, Field(pattern=r"^\d{1,5}(\.\d{1,5})*$")], Entry])
TOKEN_IDS = TypeAdapter(list[Annotated[int, Field(ge=0, lt=2**31, strict=True)]])


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor of the file; `offset` counts from the file's start."""

    layer: int
    shape: tuple[int, ...]
    offset: int
    length: int


@dataclass(frozen=True, slots=True)
class Header:
    """What the file says of itself."""

    ids: tuple[int, ...]
    classes: tuple[str, ...]
    """Class of each layer's cache."""

    tensors: tuple[Tensor, ...]
    """In the order of their bytes, without gaps, up to the file's end."""

    size: int


def read_cache_file(path: Path) -> CacheFile:
    """Tokens and segments of a cache file. Blocking. Raises CacheRefused."""
    header = read_header(path)
    first = header.tensors[0].offset if header.tensors else header.size
    pieces = [Segment(0, first, SegmentKind.OPAQUE)]
    for tensor in header.tensors:
        pieces.extend(_segments(tensor, header))
    return CacheFile(len(header.ids), header.ids, tuple(_joined(pieces)))


def read_header(path: Path) -> Header:
    """Read and check a cache file's header. Blocking. Raises CacheRefused for any other or incomplete file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            document, start = _document(file, size)
        return _header(document, start, size)
    except OSError as error:
        raise CacheRefused(f"cache file {path.name} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        reason = str(error) if type(error) is ValueError else f"its header is malformed ({type(error).__name__})"
        raise CacheRefused(f"cache file {path.name} is not one of MLX, or is damaged: {reason}") from error


def _document(file: BinaryIO, size: int) -> tuple[dict[str, object], int]:
    """The header's JSON, and where the data start."""
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    if size < 8 or length > min(size - 8, HEADER_LIMIT):
        raise ValueError("its header is longer than the file or the format allow")
    return DOCUMENT.validate_json(file.read(length)), 8 + length


def _header(document: dict[str, object], start: int, size: int) -> Header:
    metadata = METADATA.validate_python(document.pop("__metadata__", {}))
    if metadata.get("0.format") != FORMAT:
        raise ValueError(f"its format is {metadata.get('0.format')!r}, not {FORMAT!r}")
    classes = _classes(metadata)
    tensors = [_tensor(name, entry, start) for name, entry in ENTRIES.validate_python(document).items()]
    tensors.sort(key=lambda tensor: (tensor.offset, tensor.length))
    end = start
    for tensor in tensors:
        if tensor.offset != end or tensor.length < 0 or tensor.layer >= len(classes):
            raise ValueError("its tensors do not follow each other")
        end += tensor.length
    if end != size:
        raise ValueError(f"it is {size} bytes long, and its header speaks of {end}")
    return Header(tuple(TOKEN_IDS.validate_json(metadata.get("0.tokens", ""))), classes, tuple(tensors), size)


def _tensor(name: str, entry: Entry, start: int) -> Tensor:
    first, last = entry.data_offsets
    return Tensor(int(name.partition(".")[0]), tuple(entry.shape), start + first, last - first)


def _classes(metadata: dict[str, str]) -> tuple[str, ...]:
    names: list[str] = []
    while (name := metadata.get(f"1.{len(names)}")) is not None:
        names.append(name)
    return tuple(names)


def _segments(tensor: Tensor, header: Header) -> Iterator[Segment]:
    """One a head for rows, else one."""
    tokens = len(header.ids)
    heads = tensor.shape[1] if len(tensor.shape) == 4 else 0
    rows = heads > 0 and tensor.shape[0] == 1 and tensor.shape[2] == tokens > 0
    if not rows or header.classes[tensor.layer] not in ROW_CLASSES or tensor.length % math.prod(tensor.shape):
        yield Segment(tensor.offset, tensor.length, SegmentKind.OPAQUE)
        return
    stretch = tensor.length // heads
    for head in range(heads):
        yield Segment(tensor.offset + head * stretch, stretch, SegmentKind.ROWS)


def _joined(pieces: list[Segment]) -> Iterator[Segment]:
    """Neighbouring opaque segments become one, empty ones none."""
    open_: Segment | None = None
    for piece in pieces:
        if open_ is not None and piece.kind is SegmentKind.OPAQUE:
            open_ = Segment(open_.offset, open_.length + piece.length, SegmentKind.OPAQUE)
        elif piece.kind is SegmentKind.OPAQUE:
            open_ = piece
        else:
            if open_ is not None and open_.length:
                yield open_
            open_ = None
            yield piece
    if open_ is not None and open_.length:
        yield open_
