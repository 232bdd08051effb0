"""The `vllm:` block of a model."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from viiwork_core import PluginOptions

Fraction = Annotated[float, Field(gt=0, le=1)]


class VllmOptions(PluginOptions):
    """Which vLLM runs, and how. Everything else that vLLM can do is said in the model's `args`."""

    exe: str = Field(default="vllm", min_length=1)
    """The `vllm` command: a name that is looked up in PATH, or its absolute path."""

    gpu_memory_utilization: Fraction | None = None
    """Share of each card's memory that a backend takes, 0 to 1; None: vLLM's own choice, which is nearly all of it."""

    dtype: Literal["auto", "half", "float16", "bfloat16", "float", "float32"] = "auto"
    """Type of the weights and of the computation."""
