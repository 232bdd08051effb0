"""Durations and sizes as people write them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from viiwork_core.config.durations import (
    DURATION_PATTERN,
    SIZE_PATTERN,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20s", 20), ("10m", 600), ("1h30m", 5400), ("250ms", 0.25), ("1.5s", 1.5), ("0", 0), (0, 0), ("0s", 0)],
)
def test_duration_is_read_as_seconds(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "value", ["", "5", 5, 1.5, "--1s", "5 s", "5d", "s", True, False, None, [], "1" * 50 + "s", "٣s"]
)
def test_anything_else_is_no_duration(value: object) -> None:
    with pytest.raises(ValueError, match='such as "20s"'):
        parse_duration(value)


@pytest.mark.parametrize("value", ["-1s", "-1h30m", "-0.5s"])
def test_a_negative_duration_is_called_that(value: str) -> None:
    with pytest.raises(ValueError, match="must not be negative"):
        parse_duration(value)


def test_a_duration_is_a_year_at_most() -> None:
    assert parse_duration("8760h") == 8760 * 3600
    with pytest.raises(ValueError, match="at most 8760h"):
        parse_duration("8760h1ms")
    with pytest.raises(ValueError, match="at most 8760h"):
        parse_duration("9" * 39 + "s")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(20, "20s"), (600, "10m"), (5400, "1h30m"), (0.25, "250ms"), (0, "0s"), (1.5, "1s500ms"), (1e-05, "0.00001s")],
)
def test_a_duration_is_written_as_people_do(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@given(st.floats(min_value=0, max_value=8760 * 3600).filter(lambda seconds: seconds == 0 or seconds > 1e-9))
def test_a_duration_that_was_written_is_read_as_the_same(seconds: float) -> None:
    text = format_duration(seconds)
    assert re.search(DURATION_PATTERN, text)
    if len(text) <= 40:
        assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@given(st.integers(min_value=1, max_value=1 << 60))
def test_a_size_that_was_written_is_read_as_the_same(size: int) -> None:
    text = format_size(size)
    assert parse_size(text) == size
    assert isinstance(text, int) or re.search(SIZE_PATTERN, text)


@pytest.mark.parametrize(("size", "text"), [(32 << 20, "32MiB"), (1536, "1536"), (2048, "2KiB"), (0, "0")])
def test_a_size_is_written_with_the_largest_unit_that_divides_it(size: int, text: str) -> None:
    assert str(format_size(size)) == text


@pytest.mark.parametrize(("value", "size"), [(7, 7), ("7", 7), ("2KiB", 2048), ("32MiB", 32 << 20), ("1 GiB", 1 << 30)])
def test_size_is_read_as_bytes(value: object, size: int) -> None:
    assert parse_size(value) == size


@pytest.mark.parametrize("value", ["", "3MB", "-1", -1, True, 1.5, None, "MiB"])
def test_anything_else_is_no_size(value: object) -> None:
    with pytest.raises(ValueError, match="must be a size"):
        parse_size(value)
