"""Tables fit the terminal, hold nothing that it would obey, and are coloured only on request."""

from __future__ import annotations

import pytest

from viiwork_core.cli.table import Screen

PLAIN = Screen(80, colour=False)


def test_columns_are_aligned() -> None:
    assert PLAIN.table([("A", "BB", "C"), ("long", "b", "")]) == ["A     BB  C", "long  b"]


def test_the_widest_cells_are_cut() -> None:
    lines = Screen(30, colour=False).table([("NAME", "MODELS"), ("n", "m" * 100)])
    assert lines[1] == "n     " + "m" * 22 + ".."
    assert all(len(line) <= 30 for line in lines)


def test_a_terminal_is_not_given_orders() -> None:
    assert PLAIN.table([("a\x1b[2J\nb",)]) == ["a [2J b"]


def test_colour_is_for_states_and_takes_no_room() -> None:
    rows = [("STATE", "X"), ("healthy", "x"), ("dead", "y")]
    coloured = Screen(80, colour=True).table(rows)
    assert coloured[1] == "\x1b[32mhealthy\x1b[0m  x"
    assert coloured[2] == "\x1b[31mdead   \x1b[0m  y"
    assert PLAIN.table(rows)[1] == "healthy  x"


@pytest.mark.parametrize("no_color", ["", "1"])
def test_where_it_is_no_terminal_there_is_no_colour(monkeypatch: pytest.MonkeyPatch, no_color: str) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("COLUMNS", "80")
    assert Screen.here() == Screen(80, colour=False)
