"""Durations and sizes as people write them."""

from __future__ import annotations

import pytest

from viiwork_core.config.durations import parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("20s", 20), ("10m", 600), ("1h30m", 5400), ("250ms", 0.25), ("1.5s", 1.5), ("0", 0), (0, 0), ("0s", 0)],
)
def test_duration_is_read_as_seconds(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "value", ["", "5", 5, 1.5, "-1s", "5 s", "5d", "s", True, False, None, [], "1" * 50 + "s", "٣s"]
)
def test_anything_else_is_no_duration(value: object) -> None:
    with pytest.raises(ValueError, match='such as "20s"'):
        parse_duration(value)


@pytest.mark.parametrize(("value", "size"), [(7, 7), ("7", 7), ("2KiB", 2048), ("32MiB", 32 << 20), ("1 GiB", 1 << 30)])
def test_size_is_read_as_bytes(value: object, size: int) -> None:
    assert parse_size(value) == size


@pytest.mark.parametrize("value", ["", "3MB", "-1", -1, True, 1.5, None, "MiB"])
def test_anything_else_is_no_size(value: object) -> None:
    with pytest.raises(ValueError, match="must be a size"):
        parse_size(value)
