"""What a GGUF file says of itself, read from its header; the weights are never touched.

A reader of our own, because the file comes from anywhere and is read before each start. The `gguf` package needs numpy,
takes seconds and some 200 MB for a vocabulary that nobody asked for, names no reason for a file that was cut short, and
follows a length of a made-up terabyte for as long as it likes. Here every length is checked against the file first,
and what is not asked for is skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

HEADER_LIMIT = 64 << 20
"""Bytes. The largest vocabularies take a third of that; walking more than this would hold up a start."""

KEY_LIMIT = 1 << 16
VALUES_LIMIT = 1 << 16
TENSORS_LIMIT = 1 << 17
TEXTS_LIMIT = 1 << 22
"""Texts in one list."""

NAME_LIMIT = 80
"""Letters of a tensor's or an architecture's name that are kept; ggml has room for 64."""

TEXT_LIMIT = 4096
"""Longer texts (chat templates, licences) are skipped."""

ALIGNMENT = 32
VERSIONS = (2, 3)

Value = str | int | float | bool

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9

TYPES: Mapping[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
}
"""Name, weights in a block and bytes of a block, by number. Of a type that is not here only the space it takes is
known."""


class DamagedFile(Exception):
    """It is no GGUF file, or not a whole one: no engine can load it."""


class UnknownFormat(Exception):
    """It may be a good file of a kind that this reader does not know."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor's place, without its weights."""

    name: str
    type: str
    """As llama.cpp calls it, e.g. Q4_K; a number where this reader has no name for it."""

    bytes: int


@dataclass(frozen=True, slots=True)
class GgufFile:
    """One file: a model, or a part of one."""

    values: Mapping[str, Value]
    """All metadata except lists and long texts."""

    tensors: tuple[Tensor, ...]

    @property
    def architecture(self) -> str:
        """E.g. llama; empty where the file does not say."""
        return _word(str(self.values.get("general.architecture", "")))

    def number(self, key: str) -> int | None:
        """A whole number that is not negative, or None. A key that begins with a dot is the architecture's own."""
        value = self.values.get(f"{self.architecture}{key}" if key.startswith(".") else key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None

    def has(self, prefix: str) -> bool:
        """Whether the architecture has a setting that begins so, and it is not zero."""
        start = f"{self.architecture}{prefix}"
        return any(key.startswith(start) and bool(value) for key, value in self.values.items())


def _word(text: str) -> str:
    """A name from the file, made safe for messages: these end up on terminals."""
    return "".join(letter if letter.isprintable() else "?" for letter in text[:NAME_LIMIT])


def read_gguf(path: Path) -> GgufFile:
    """Read a file's header. Blocking, a fraction of a second.

    Raises DamagedFile, UnknownFormat or OSError; the messages are for the operator.
    """
    size = path.stat().st_size
    with path.open("rb", buffering=1 << 20) as file:
        return _Header(file, size).read()


class _Header:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._at = 0

    def read(self) -> GgufFile:
        if self._take(4) != b"GGUF":
            raise DamagedFile("it is not a GGUF file")
        version = self._number("I")
        if version not in VERSIONS:
            raise UnknownFormat(f"it is of GGUF version {version}")
        tensors, values = self._count(TENSORS_LIMIT, 24), self._count(VALUES_LIMIT, 13)
        found = dict(pair for pair in self._pairs(values) if pair is not None)
        places = [self._place() for _ in range(tensors)]
        alignment = found.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise DamagedFile(f"its alignment is {alignment!r}")
        start = -(-self._at // alignment) * alignment
        return GgufFile(found, tuple(_sized(places, self._size - start)))

    def _pairs(self, count: int) -> Iterator[tuple[str, Value] | None]:
        for _ in range(count):
            key = self._text(KEY_LIMIT)
            value = self._value(self._number("I"))
            yield None if value is None or key is None else (key, value)

    def _value(self, kind: int) -> Value | None:
        """None: skipped."""
        if kind == TEXT:
            return self._text(TEXT_LIMIT)
        if kind == ARRAY:
            self._skip_list()
            return None
        if kind not in SCALARS:
            raise UnknownFormat(f"its metadata has a value of kind {kind}")
        code = SCALARS[kind]
        value: Value = struct.unpack(f"<{code}", self._take(struct.calcsize(f"<{code}")))[0]
        return value

    def _skip_list(self) -> None:
        kind, count = self._number("I"), self._number("Q")
        if kind in SCALARS:
            self._skip(count * struct.calcsize(f"<{SCALARS[kind]}"))
        elif kind == TEXT:
            self._fits(count * 8)
            if count > TEXTS_LIMIT:
                raise UnknownFormat(f"its metadata has a list of {count} texts")
            for _ in range(count):
                self._skip(self._number("Q"))
        else:
            raise UnknownFormat(f"its metadata has a list of kind {kind}")

    def _place(self) -> _Place:
        name = self._text(KEY_LIMIT)
        dimensions = self._number("I")
        if name is None or dimensions > 8:
            raise DamagedFile(f"it has a tensor of {dimensions} dimensions")
        weights, row = 1, 1
        for axis in range(dimensions):
            extent = self._number("Q")
            row = extent if axis == 0 else row
            weights *= extent
        return _Place(_word(name), self._number("I"), weights, row, self._number("Q"))

    def _text(self, limit: int) -> str | None:
        """None: it is longer than `limit`, and was skipped."""
        length = self._number("Q")
        if length > limit:
            self._skip(length)
            return None
        return self._take(length).decode("utf-8", "replace")

    def _count(self, limit: int, smallest: int) -> int:
        count = self._number("Q")
        self._fits(count * smallest)
        if count > limit:
            raise UnknownFormat(f"its header counts {count} entries")
        return count

    def _number(self, code: str) -> int:
        return int(struct.unpack(f"<{code}", self._take(8 if code == "Q" else 4))[0])

    def _take(self, length: int) -> bytes:
        self._advance(length)
        data = self._file.read(length)
        if len(data) != length:
            raise DamagedFile("it became shorter while it was read")
        return data

    def _skip(self, length: int) -> None:
        self._advance(length)
        self._file.seek(length, 1)

    def _advance(self, length: int) -> None:
        self._fits(length)
        self._at += length
        if self._at > HEADER_LIMIT:
            raise UnknownFormat(f"its header is over {HEADER_LIMIT >> 20} MiB")

    def _fits(self, length: int) -> None:
        if length > self._size - self._at:
            raise DamagedFile(f"it ends inside its header, at byte {self._size}")


@dataclass(frozen=True, slots=True)
class _Place:
    name: str
    type: int
    weights: int
    row: int
    offset: int


def _sized(places: list[_Place], room: int) -> Iterator[Tensor]:
    """The tensors in the order of the file. `room`: bytes behind the header."""
    ends = dict(zip(places, _ends(places, room), strict=True))
    for place in places:
        name, block, size = TYPES.get(place.type, (str(place.type), 0, 0))
        length = ends[place] - place.offset
        if block:
            if place.row % block:
                raise DamagedFile(f"the rows of its tensor {place.name} are no whole blocks of {name}")
            length = place.weights // block * size
        if length < 0 or place.offset + length > room:
            missing = place.offset + max(length, 0) - room
            raise DamagedFile(f"it is cut short: {missing} bytes of its tensor {place.name} are missing")
        yield Tensor(place.name, name, length)


def _ends(places: list[_Place], room: int) -> list[int]:
    """Where each tensor's space ends: where the next one begins, or with the file."""
    offsets = sorted({place.offset for place in places})
    following = dict(zip(offsets, [*offsets[1:], room], strict=False))
    return [following[place.offset] for place in places]
