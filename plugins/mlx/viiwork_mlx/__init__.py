"""MLX (mlx_lm) as an engine of viiwork."""

from __future__ import annotations

from viiwork_core import CacheTransfer, Engine, hookimpl
from viiwork_mlx.cache import MlxCache
from viiwork_mlx.engine import MlxEngine

VIIWORK_API = (1, 2)
VIIWORK_KIT = "viiwork_mlx.kit:cases"


@hookimpl
def viiwork_register_engine() -> type[Engine]:
    return MlxEngine


@hookimpl
def viiwork_register_cache_transfer() -> type[CacheTransfer]:
    return MlxCache
