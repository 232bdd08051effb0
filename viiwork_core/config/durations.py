"""Durations and sizes as people write them."""

from __future__ import annotations

import math
import re
from decimal import Decimal

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NUMBER_AND_UNIT = r"\d+(?:\.\d+)?(?:ms|s|m|h)"
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)", re.ASCII)
_DURATION = re.compile(rf"(?:{_NUMBER_AND_UNIT})+", re.ASCII)
_SIZE = re.compile(r"(\d+)\s*(KiB|MiB|GiB|B)?", re.ASCII)
_SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_MAX_LENGTH = 40
"""No duration or size needs more; longer digits are not worth converting."""

_LONGEST_H = 8760
"""A year; timers of some event loops break at far longer ones."""

DURATION_PATTERN = rf"^({_NUMBER_AND_UNIT})+$".replace("?:", "")
SIZE_PATTERN = r"^\d+\s*(B|KiB|MiB|GiB)?$"
"""The same for those who check a file by its JSON schema."""


def parse_duration(value: object) -> float:
    """Seconds of "20s", "10m", "1h30m" or "250ms"; 0 needs no unit. At most a year. Raises ValueError."""
    if value == "0" or (value == 0 and not isinstance(value, bool)):
        return 0.0
    if isinstance(value, str) and value.startswith("-") and _DURATION.fullmatch(value[1:]):
        raise ValueError("must not be negative")
    if not isinstance(value, str) or len(value) > _MAX_LENGTH or not _DURATION.fullmatch(value):
        raise ValueError('must be a duration; write a number and a unit (ms, s, m, h), such as "20s" or "1h30m"')
    seconds = math.fsum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))
    if seconds > _LONGEST_H * 3600:
        raise ValueError(f"must be at most {_LONGEST_H}h, a year")
    return seconds


def format_duration(seconds: float) -> str:
    """What `parse_duration` reads as this: "1h30m", "250ms"."""
    rest = round(seconds * 1000)
    if rest / 1000 != seconds:
        return f"{Decimal(repr(seconds)):f}s"
    text = ""
    for unit, size in (("h", 3_600_000), ("m", 60_000), ("s", 1000), ("ms", 1)):
        count, rest = divmod(rest, size)
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def parse_size(value: object) -> int:
    """Bytes of "32MiB" or of a plain number. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) and len(value) <= _MAX_LENGTH else None
    if match is None:
        raise ValueError('must be a size; write bytes as a number, or a unit (KiB, MiB, GiB), such as "32MiB"')
    return int(match[1]) * _SIZES[match[2] or "B"]


def format_size(size: int) -> str | int:
    """What `parse_size` reads as this: "32MiB", or the number where no unit divides it."""
    for unit in ("GiB", "MiB", "KiB"):
        if size and size % _SIZES[unit] == 0:
            return f"{size // _SIZES[unit]}{unit}"
    return size
