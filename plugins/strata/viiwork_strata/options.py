"""The `strata:` block of a model."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, WithJsonSchema, field_validator

from viiwork_core import PluginOptions

LONGEST_WARM_UP = 600.0

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h)", re.ASCII)


def _seconds(value: object) -> float:
    """Seconds of "30s" or "1m30s", as durations are written elsewhere in the file; 0 needs no unit."""
    if value == "0" or (value == 0 and not isinstance(value, bool)):
        return 0.0
    parts = _PART.findall(value) if isinstance(value, str) else []
    if not parts or "".join(number + unit for number, unit in parts) != value:
        raise ValueError('must be a duration, such as "30s" or "2m", or 0 for none')
    return math.fsum(float(number) * _UNITS[unit] for number, unit in parts)


def _bounded(value: float) -> float:
    if value > LONGEST_WARM_UP:
        raise ValueError("must be at most 10m")
    return value


def _written(value: float) -> str:
    return f"{value:g}s"


_SCHEMA = {
    "title": "duration up to 10m",
    "anyOf": [{"type": "string", "pattern": r"^(\d+(\.\d+)?(ms|s|m|h))+$"}, {"const": 0}],
}
_WarmUp = Annotated[
    float, BeforeValidator(_seconds), AfterValidator(_bounded), PlainSerializer(_written), WithJsonSchema(_SCHEMA)
]


class StrataOptions(PluginOptions):
    """Where Strata is installed, and how long it warms up."""

    dir: Path
    """Absolute path of the Strata checkout: the folder that holds `serve/`."""

    python: str = Field(default="python3", min_length=1)
    """Interpreter that has Strata's requirements; a name is looked up in PATH."""

    warmup: _WarmUp = 30.0
    """How long the server must have said that its model is loaded before it gets a request; 0 turns it off."""

    @field_validator("dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        if not value.is_absolute():
            raise ValueError("must be an absolute path to the Strata checkout, the folder that holds serve/")
        return value
