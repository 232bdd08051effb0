"""What `viiwork plugin check` and the tests try the plugin with: a real llama-server on the processor, a tiny model."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from viiwork_core import ConfigError, Spec
from viiwork_core.testing.cache_kit import CacheCase
from viiwork_core.testing.engine_kit import EngineCase, kit_context
from viiwork_core.testing.tiny_model import write_gguf
from viiwork_llamacpp.cache import LlamaCppCache
from viiwork_llamacpp.engine import LlamaCpp
from viiwork_llamacpp.launch import find_binary
from viiwork_llamacpp.options import LlamaCppOptions

NEEDED = ("gguf", "numpy")
"""Of these a model is made."""


def cases(folder: Path) -> list[EngineCase | CacheCase]:
    """None where there is no llama-server, or nothing to make a model of."""
    options = LlamaCppOptions(threads=1)
    try:
        find_binary(options, "tiny")
    except ConfigError:
        return []
    if not all(find_spec(name) for name in NEEDED):
        return []
    spec = Spec("tiny", 0, 1, write_gguf(folder / "one.gguf"), context=4096, parallel=2)
    other, caches = write_gguf(folder / "two.gguf", seed=2), folder / "caches"
    caches.mkdir()
    context = kit_context(folder)
    return [
        EngineCase(LlamaCpp, options, spec, context),
        CacheCase(LlamaCpp, LlamaCppCache, options, spec, other, caches, context),
    ]
