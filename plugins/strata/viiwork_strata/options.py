"""The `strata:` block of a model."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from viiwork_core import PluginOptions


class StrataOptions(PluginOptions):
    """Where Strata is installed."""

    dir: Path
    """Absolute path of the Strata checkout: the folder that holds `serve/`."""

    python: str = Field(default="python3", min_length=1)
    """Interpreter that has Strata's requirements; a name is looked up in PATH."""

    @field_validator("dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        if not value.is_absolute():
            raise ValueError("must be an absolute path to the Strata checkout, the folder that holds serve/")
        return value
