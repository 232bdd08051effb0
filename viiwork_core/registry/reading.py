"""Reading a configuration so that all that is wrong with it is told at once, of both passes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from viiwork_core.config.load import load_config
from viiwork_core.config.schema import Config
from viiwork_core.config.unsound import UnsoundConfig
from viiwork_core.registry.entry_points import load_plugins
from viiwork_core.registry.options import with_the_rest
from viiwork_core.registry.registry import Registry


def read_config(path: Path | None, environ: Mapping[str, str], registry: Registry | None = None) -> Config:
    """What `load_config` reads. `registry`: None: the plugins are loaded if something is wrong. Raises ConfigError."""
    try:
        return load_config(path, environ)
    except UnsoundConfig as error:
        plugins = load_plugins(environ) if registry is None else registry
        raise with_the_rest(error, plugins) from None
