"""What viiwork top keeps of a stream, and the lines that it makes of it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from recorded_mesh import RECORDED, WALL  # found by the line above

from viiwork_core.cli.top import words
from viiwork_core.cli.top.flights import MOST_EVENTS, MOST_FLIGHTS
from viiwork_core.cli.top.lines import Column, Piece, cells, cut, piece, table, text_of
from viiwork_core.cli.top.once import frame
from viiwork_core.cli.top.picture import Picture
from viiwork_core.cli.top.sections import MOST_ROWS, head, sections

NOW = 1000.0


def recorded() -> Picture:
    picture, name = Picture(), ""
    for line in RECORDED.read_text().splitlines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            picture.take(name, json.loads(line.removeprefix("data: ")), now=NOW, wall=WALL)
    return picture


def event(number: int, message: str = "m → m/0", rid: str | None = "r", **more: Any) -> dict[str, Any]:
    told = {"t": 100 + number, "type": "request", "message": message, "n": number, "node_id": "a1", "hostname": "a"}
    return {**told, **({"rid": rid} if rid else {}), **more}


def fed(*events: dict[str, Any], now: float = NOW) -> Picture:
    picture = Picture()
    for one in events:
        picture.take("activity", one, now=now, wall=200.0)
    return picture


def test_a_frame_is_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    lines = list(frame(recorded(), NOW, 100))
    assert lines[0].startswith("viiwork top: a secured mesh, seen from alpha, 3 nodes")
    at = lines.index("alpha     41  5.0 GiB       1        2  warm 85 % (17), partly 10 % (2), cold 5 % (1)")
    assert lines[at + 1] == "→ beta    41  5.0 GiB       1           1 on the way now"
    assert "gemma-12b    alpha → beta  gemma-12b/0    answering  0.0 s   0.0 s  r-1" in lines
    assert all(line.isprintable() for line in lines)
    assert all(cells(line) <= 100 for line in lines)


@pytest.mark.parametrize("width", [80, 81, 100, 120, 200])
def test_nothing_is_wider_than_the_terminal(width: int) -> None:
    for section in sections(recorded(), NOW, width):
        assert all(cells(text_of(line)) <= width for line in section.lines), section.title


def test_a_request_that_was_sent_on_is_one_row() -> None:
    entry = event(1, "m → peer b")
    there = {**event(1), "node_id": "b1", "hostname": "b"}
    for order in ([entry, there], [there, entry]):
        (row,) = fed(*order).flights(NOW)
        assert (row.model, row.node, row.peer, row.runs, row.first) == ("m", "a", "b", "m/0", None)
    (row,) = fed(entry, there, event(2, "m → peer b first token after 0.5s")).flights(NOW)
    assert row.first == 0.5


def test_a_request_that_is_over_stays_for_a_moment() -> None:
    picture = fed(event(1), event(2, "m → m/0 done (1.5s)"))
    (row,) = picture.flights(NOW + 2)
    assert (row.end, row.seconds) == ("done", 1.5)
    assert picture.flights(NOW + 4) == []
    assert fed(event(1, "m → m/0 done (1.5s)")).flights(NOW) == [], "it was over before anybody looked"
    assert fed(event(1, replay=True), event(2, "m → m/0 done (1.5s)", replay=True)).flights(NOW) == []


def test_one_that_began_before_counts_from_then() -> None:
    (row,) = fed(event(1, replay=True)).flights(NOW)
    assert row.seconds == 99.0


def test_those_of_a_node_that_is_gone_are_gone() -> None:
    picture = fed(event(1))
    members: list[dict[str, Any]] = [{"node_id": "other", "node": "o"}]
    picture.take("cluster", {"members": members, "models": []}, now=NOW, wall=0)
    assert picture.flights(NOW) == []
    picture = fed(event(1))
    picture.begin()
    assert picture.flights(NOW) == []


def test_however_much_happens_it_stays_small() -> None:
    picture = fed(*(event(number, rid=f"r{number}") for number in range(5000)))
    assert len(picture.happened.newest()) == MOST_EVENTS
    assert picture.happened.newest()[0]["n"] == 4999
    assert len(picture.flights(NOW)) == MOST_FLIGHTS
    lines = sections(picture, NOW, 80)[2].lines
    assert len(lines) == MOST_ROWS + 2
    assert text_of(lines[-1]) == f"and {MOST_FLIGHTS - MOST_ROWS} more"


def test_an_event_that_is_told_twice_is_kept_once_and_in_order() -> None:
    picture = fed(event(2), event(1), event(2))
    assert [one["n"] for one in picture.happened.newest()] == [2, 1]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("cluster", None),
        ("cluster", []),
        ("cluster", {}),
        ("cluster", {"members": 5}),
        ("cluster", {"members": [5]}),
        ("cluster", {"members": [{}]}),
        ("aliases", {}),
        ("activity", {}),
        ("activity", {"t": "x", "node_id": "a", "message": "m", "hostname": "h"}),
        ("unheard-of", {"a": 1}),
    ],
)
def test_what_makes_no_sense_is_passed_over(name: str, data: object) -> None:
    picture = recorded()
    before = picture.told(NOW)
    picture.take(name, data, now=NOW, wall=WALL)
    assert picture.told(NOW) == before


def test_nothing_is_known_at_first() -> None:
    assert head(Picture()) == "nothing is known yet"
    assert [section.lines[0][0].meaning for section in sections(Picture(), NOW, 80)] == ["faint"] * 6


# Lines


def test_text_from_elsewhere_is_harmless() -> None:
    assert piece("a\x1b[31m\nb\r\u202e").text == "a [31m b  "
    assert len(piece("x" * 100_000).text) == 200


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [("hello", 5, "hello"), ("hello", 4, "he.."), ("模型名", 5, "模.."), ("模型名", 6, "模型名"), ("ab", 1, "a")],
)
def test_cut_counts_columns(text: str, width: int, expected: str) -> None:
    assert cut(text, width) == expected


def test_figures_are_never_cut_and_what_does_not_fit_is_left_out() -> None:
    columns = (Column("NAME", keep=True), Column("COUNT", right=True, keep=True), Column("NOTE"), Column("MORE"))
    rows = [("a" * 40, "1,234,567", "words of a note", "other words")]
    assert text_of(table(columns, rows, 90)[1]) == f"{'a' * 40}  1,234,567  words of a note  other words"
    assert text_of(table(columns, rows, 45)[0]).split() == ["NAME", "COUNT", "NOTE", "MORE"]
    narrow = table(columns, rows, 30)
    assert [one.text.strip() for one in narrow[0] if one.text.strip()] == ["NAME", "COUNT"]
    assert text_of(narrow[1]).endswith("1,234,567")
    assert all(cells(text_of(line)) <= 30 for line in narrow)


def test_a_meaning_goes_with_its_cell() -> None:
    (_, row) = table((Column("A"), Column("B")), [(Piece("x", "bad"), "y")], 80)
    assert [one.meaning for one in row] == ["bad", "", ""]


# Words


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (words.count(1234567), "1,234,567"),
        (words.count(None), "-"),
        (words.count("5"), "-"),
        (words.count(True), "-"),
        (words.count(float("nan")), "-"),
        (words.short(9999), "9,999"),
        (words.short(12_300), "12.3 k"),
        (words.short(5_000_000), "5.0 M"),
        (words.short(2_500_000_000), "2.5 G"),
        (words.memory(512), "512 MiB"),
        (words.memory(200_000), "195 GiB"),
        (words.size(100), "1 KiB"),
        (words.size(5 << 30), "5.0 GiB"),
        (words.percent(0.123), "12 %"),
        (words.seconds(1.25), "1.2 s"),
        (words.plural(1, "node", "nodes"), "1 node"),
        (words.plural(0, "node", "nodes"), "0 nodes"),
    ],
)
def test_words(made: str, expected: str) -> None:
    assert made == expected


def test_a_sum_leaves_out_what_is_no_number() -> None:
    assert words.total([1, None, "x", 2.5]) == 3.5


def test_before_the_node_has_told_nothing_is_said_to_be_so() -> None:
    assert {text_of(one.lines[0]) for one in sections(Picture(), NOW, 80)} == {"Not known yet."}


def test_figures_below_nought_are_not_known() -> None:
    """Other nodes' are refused by this one before; a page or a screen shows none either way."""
    member = {"node": "odd", "node_id": "x", "state": "alive", "models": [{"name": "m", "slots": -4, "busy": 0}]}
    picture = Picture()
    picture.take("cluster", {"view": "odd", "mesh": "open", "members": [member], "models": ["m"]}, now=NOW, wall=0.0)
    lines = [text_of(line) for line in sections(picture, NOW, 80)[1].lines]
    assert lines[1].split() == ["m", "odd", "-", "-", "of", "-", "0", "-", "-", "-", "-", "-"]
