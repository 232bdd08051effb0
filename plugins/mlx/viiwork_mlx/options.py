"""The `mlx:` block of a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

from pydantic import Field, PositiveInt, field_validator

from viiwork_core import PluginOptions

Size = Annotated[str, Field(pattern=r"^\d+(\.\d+)?\s*(M|MB|G|GB)?$")]


class MlxOptions(PluginOptions):
    """Which Python runs MLX, what is loaded beside the model, and how much of past conversations it keeps."""

    python: str = Field(default=sys.executable, min_length=1)
    """Interpreter that has mlx_lm and this plugin; a name is looked up in PATH."""

    adapter: Path | None = None
    """Folder of a LoRA or DoRA adapter, adapter_config.json and adapters.safetensors, put on the model."""

    draft_model: Path | None = None
    """Folder of a small model of the same tokenizer that guesses tokens ahead. Requests are then answered one at a
    time, however large `parallel` is."""

    prompt_cache_size: PositiveInt = 10
    """How many conversations stay in memory, the longest unused goes first."""

    prompt_cache_bytes: PositiveInt | Size | None = None
    """How much memory they may take, running requests included: bytes, or a number with M, MB, G or GB (powers of ten).
    None: on a Mac what its GPU may have beside the weights, elsewhere no limit."""

    @field_validator("adapter", "draft_model")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_absolute():
            raise ValueError("must be an absolute path, which begins with /")
        return value
