"""Strata as an engine of viiwork."""

from __future__ import annotations

from viiwork_core import CacheTransfer, Engine, hookimpl
from viiwork_strata.cache import StrataCache
from viiwork_strata.engine import StrataEngine

VIIWORK_API = (1, 1)
VIIWORK_KIT = "viiwork_strata.testing.kit:cases"


@hookimpl
def viiwork_register_engine() -> type[Engine]:
    return StrataEngine


@hookimpl
def viiwork_register_cache_transfer() -> type[CacheTransfer]:
    return StrataCache
