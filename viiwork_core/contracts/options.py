"""Options: the model of a plugin's own block in the configuration."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class PluginOptions(BaseModel):
    """What every plugin's `Options` derives from: frozen, and an unknown key is an error that names it."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class NoOptions(PluginOptions):
    """For a plugin that takes none: any key in its block is an error."""
