"""Output cut into lines."""

from __future__ import annotations

import pytest

from viiwork_core.engines.process import LineSink


def fed(*chunks: bytes) -> tuple[LineSink, list[str]]:
    lines: list[str] = []
    sink = LineSink(lines.append)
    for chunk in chunks:
        sink.data_received(chunk)
    sink.connection_lost(None)
    return sink, lines


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ((b"one\ntwo\n",), ["one", "two"]),
        ((b"o", b"ne\nt", b"wo"), ["one", "two"]),
        ((b"a\r\nb\rc\n\n\nd",), ["a", "b", "c", "d"]),
        ((b"caf\xc3", b"\xa9\n"), ["café"]),
        ((b"\xff\n",), ["\ufffd"]),
        ((b"\x1b[31mred\x1b[0m\tx\n",), [" [31mred [0m\tx"]),
    ],
)
def test_lines(chunks: tuple[bytes, ...], lines: list[str]) -> None:
    assert fed(*chunks)[1] == lines


def test_a_long_line_is_cut_and_its_rest_dropped() -> None:
    assert fed(b"x" * 3000, b"x" * 3000, b"x" * 9000, b"x\nnext\n")[1] == ["x" * 4096, "next"]


def test_the_last_twenty_lines_are_kept() -> None:
    sink, lines = fed(*(f"{number}\n".encode() for number in range(50)))
    assert len(lines) == 50
    assert list(sink.tail) == [str(number) for number in range(30, 50)]
