"""Durations and sizes as people write them."""

from __future__ import annotations

import math
import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h)", re.ASCII)
_DURATION = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_SIZE = re.compile(r"(\d+)\s*(KiB|MiB|GiB|B)?", re.ASCII)
_SIZES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_MAX_LENGTH = 40
"""No duration or size needs more; longer digits are not worth converting."""


def parse_duration(value: object) -> float:
    """Seconds of "20s", "10m", "1h30m" or "250ms"; 0 needs no unit. Raises ValueError."""
    if value == "0" or (value == 0 and not isinstance(value, bool)):
        return 0.0
    if not isinstance(value, str) or len(value) > _MAX_LENGTH or not _DURATION.fullmatch(value):
        raise ValueError('must be a duration; write a number and a unit (ms, s, m, h), such as "20s" or "1h30m"')
    return math.fsum(float(number) * _UNITS[unit] for number, unit in _PART.findall(value))


def parse_size(value: object) -> int:
    """Bytes of "32MiB" or of a plain number. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) and len(value) <= _MAX_LENGTH else None
    if match is None:
        raise ValueError('must be a size; write bytes as a number, or a unit (KiB, MiB, GiB), such as "32MiB"')
    return int(match[1]) * _SIZES[match[2] or "B"]
