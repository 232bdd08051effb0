"""llama.cpp's llama-server as an engine of viiwork."""

from __future__ import annotations

from viiwork_core import CacheTransfer, Engine, hookimpl
from viiwork_llamacpp.cache import LlamaCppCache
from viiwork_llamacpp.engine import LlamaCpp


@hookimpl
def viiwork_register_engine() -> type[Engine]:
    return LlamaCpp


@hookimpl
def viiwork_register_cache_transfer() -> type[CacheTransfer]:
    return LlamaCppCache
