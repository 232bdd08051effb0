"""Figures as people read them. What is not known is a dash, and never a nought."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

DASH: Final = "-"
_UNITS: Final = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))


def number(value: object) -> float | None:
    """A number that came from outside; None: it is none, or below nought, which nothing here can be."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        return None
    return value


def total(values: Iterable[object]) -> float:
    """Of those that are numbers."""
    return sum(known for value in values if (known := number(value)) is not None)


def count(value: object) -> str:
    """A whole number."""
    known = number(value)
    return DASH if known is None else f"{round(known):,}"


def short(value: object) -> str:
    """A large number in three or four figures."""
    known = number(value)
    if known is None:
        return DASH
    for least, size, unit in _UNITS:
        if known >= least:
            return f"{_digits(known / size)} {unit}"
    return f"{round(known):,}"


def memory(mib: object) -> str:
    """MiB, as they are or in GiB."""
    known = number(mib)
    if known is None:
        return DASH
    return f"{_digits(known / 1024)} GiB" if known >= 1024 else f"{round(known)} MiB"


def size(value: object) -> str:
    """Bytes."""
    known = number(value)
    if known is None:
        return DASH
    return f"{math.ceil(known / 1024)} KiB" if known < 1 << 20 else memory(known / (1 << 20))


def percent(share: object) -> str:
    """Of a share of one."""
    known = number(share)
    return DASH if known is None else f"{round(known * 100)} %"


def seconds(value: object) -> str:
    """With a tenth."""
    known = number(value)
    return DASH if known is None else f"{known:.1f} s"


def plural(value: float, one: str, many: str) -> str:
    """A number and what it is of."""
    return f"{count(value)} {one if value == 1 else many}"


def _digits(value: float) -> str:
    return f"{round(value):,}" if value >= 100 else f"{value:.1f}"
