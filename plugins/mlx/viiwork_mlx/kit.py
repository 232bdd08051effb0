"""What `viiwork plugin check` and the tests try the plugin with: mlx_lm's real server and a tiny model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from viiwork_core import Spec
from viiwork_core.testing.cache_kit import CacheCase
from viiwork_core.testing.engine_kit import EngineCase, kit_context
from viiwork_core.testing.tiny_model import write_mlx
from viiwork_mlx.cache import MlxCache
from viiwork_mlx.engine import MlxEngine
from viiwork_mlx.options import MlxOptions

NEEDED = ("mlx", "mlx_lm", "numpy", "safetensors")


def cases(folder: Path) -> list[EngineCase | CacheCase]:
    """None where this Python cannot run MLX."""
    if not all(find_spec(name) for name in NEEDED):
        return []
    spec = Spec("tiny", 0, 1, write_mlx(folder / "one"), context=4096, parallel=2)
    other, caches = write_mlx(folder / "two", seed=2), folder / "caches"
    caches.mkdir()
    options, context = MlxOptions(), kit_context(folder)
    return [
        EngineCase(MlxEngine, options, spec, context),
        CacheCase(MlxEngine, MlxCache, options, spec, other, caches, context),
    ]
