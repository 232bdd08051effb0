"""Lines for a terminal: pieces of text, each with what it means, and tables of them that fit a width."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from viiwork_core.observe.events import plain

Meaning = Literal["", "title", "head", "good", "warn", "bad", "faint", "name"]

GAP: Final = 2
NARROWEST: Final = 8
"""Columns of the terminal that a text keeps, if it has so many."""

READABLE: Final = 14
"""The same for what is to be kept, as long as something else can be left out."""

LONGEST_CELL: Final = 200
"""Characters; what is longer is cut before it is measured."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A text and what it means. It is on one line and holds nothing that a terminal obeys."""

    text: str
    meaning: Meaning = ""


Line = Sequence[Piece]
Cell = Piece | str


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table."""

    name: str
    right: bool = False
    """Figures stand at the right."""

    keep: bool = False
    """It is always shown."""


def piece(text: object, meaning: Meaning = "") -> Piece:
    """Text from anywhere, made harmless."""
    return Piece(plain(str(text)[:LONGEST_CELL]), meaning)


def cells(text: str) -> int:
    """Columns of the terminal that a text takes."""
    return len(text) if text.isascii() else sum(map(_cells, text))


def _cells(character: str) -> int:
    if unicodedata.combining(character) or unicodedata.category(character) == "Cf":
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def cut(text: str, width: int) -> str:
    """At most so many columns; what is left out is marked."""
    if cells(text) <= width:
        return text
    mark = ".." if width > 2 else ""
    kept, used = [], 0
    for character in text:
        used += _cells(character)
        if used > width - len(mark):
            break
        kept.append(character)
    return "".join(kept) + mark


def text_of(line: Line) -> str:
    """Without meanings."""
    return "".join(one.text for one in line).rstrip()


def table(columns: Sequence[Column], rows: Iterable[Sequence[Cell]], width: int) -> list[Line]:
    """The columns' names, and the rows below; at most `width` wide.

    Figures are never cut. Texts are, and what is not to be kept is left out where it does not fit, the last column
    first.
    """
    made = [[one if isinstance(one, Piece) else piece(one) for one in row] for row in rows]
    whole = [[Piece(column.name, "head") for column in columns], *made]
    widths = [max(cells(row[place].text) for row in whole) for place in range(len(columns))]
    fitted = _fitting(widths, columns, width)
    return [_line(row, columns, fitted) for row in whole]


def _fitting(widths: Sequence[int], columns: Sequence[Column], width: int) -> dict[int, int]:
    """The width of each column that is shown, by its place."""
    shown = dict(enumerate(widths))
    while True:
        found = dict(shown)
        _shrink(found, columns, width, keep=False, least=lambda column: max(NARROWEST, len(column.name)))
        _shrink(found, columns, width, keep=True, least=lambda _: READABLE)
        dropped = [place for place in shown if not columns[place].keep]
        if _over(found, width) <= 0 or not dropped:
            break
        del shown[dropped[-1]]
    _shrink(found, columns, width, keep=True, least=lambda _: NARROWEST)
    return found


def _over(widths: Mapping[int, int], width: int) -> int:
    return GAP * (len(widths) - 1) + sum(widths.values()) - width


def _shrink(
    widths: dict[int, int], columns: Sequence[Column], width: int, *, keep: bool, least: Callable[[Column], int]
) -> None:
    """Make texts narrower until all fits, the widest first, but none narrower than `least`."""
    while _over(widths, width) > 0:
        texts = [place for place in widths if columns[place].keep is keep and not columns[place].right]
        wide = [place for place in texts if widths[place] > least(columns[place])]
        if not wide:
            return
        widths[max(wide, key=lambda place: widths[place])] -= 1


def _line(row: Sequence[Piece], columns: Sequence[Column], widths: Mapping[int, int]) -> Line:
    found: list[Piece] = []
    for place, width in widths.items():
        text = cut(row[place].text, width)
        pad = " " * (width - cells(text))
        found += [Piece(" " * GAP)] if found else []
        found.append(Piece(pad + text if columns[place].right else text + pad, row[place].meaning))
    return found
