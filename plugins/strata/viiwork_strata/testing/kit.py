"""What `viiwork plugin check` and the tests try the plugin with: the double in Strata's place."""

from __future__ import annotations

import sys
from pathlib import Path

from viiwork_core import Spec
from viiwork_core.testing.cache_kit import CacheCase
from viiwork_core.testing.engine_kit import EngineCase, kit_context
from viiwork_strata.cache import StrataCache
from viiwork_strata.engine import StrataEngine
from viiwork_strata.options import StrataOptions
from viiwork_strata.testing import CHECKOUT, write_config


def cases(folder: Path) -> list[EngineCase | CacheCase]:
    """Two models of one shape, as configurations of the double."""
    options = StrataOptions.model_validate({"dir": CHECKOUT, "python": sys.executable, "warmup": 0})
    path, other, caches = _config(folder / "one"), _config(folder / "two"), folder / "caches"
    caches.mkdir()
    spec, context = Spec("tiny", 0, 1, path, context=4096, parallel=1, gpus=(0,)), kit_context(folder)
    return [
        EngineCase(StrataEngine, options, spec, context),
        CacheCase(StrataEngine, StrataCache, options, spec, other, caches, context),
    ]


def _config(folder: Path) -> Path:
    folder.mkdir()
    return write_config(folder, "tiny", seed=folder.name)
