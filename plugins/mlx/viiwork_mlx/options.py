"""The `mlx:` block of a model."""

from __future__ import annotations

import sys
from typing import Annotated

from pydantic import Field, PositiveInt

from viiwork_core import PluginOptions

Size = Annotated[str, Field(pattern=r"^\d+(\.\d+)?\s*(M|MB|G|GB)?$")]


class MlxOptions(PluginOptions):
    """Which Python runs MLX, and how much of past conversations it keeps."""

    python: str = Field(default=sys.executable, min_length=1)
    """Interpreter that has mlx_lm and this plugin; a name is looked up in PATH."""

    prompt_cache_size: PositiveInt = 10
    """How many conversations stay in memory, the longest unused goes first."""

    prompt_cache_bytes: PositiveInt | Size | None = None
    """How much memory they may take: bytes, or a number with M, MB, G or GB (powers of ten). None: no limit."""
