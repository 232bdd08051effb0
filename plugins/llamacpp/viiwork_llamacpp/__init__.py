"""llama.cpp's llama-server as an engine of viiwork."""

from __future__ import annotations

from viiwork_core import CacheTransfer, DoctorCheck, Engine, hookimpl
from viiwork_llamacpp.cache import LlamaCppCache
from viiwork_llamacpp.doctor import LlamaCppCheck
from viiwork_llamacpp.engine import LlamaCpp

VIIWORK_API = (1, 2)
VIIWORK_KIT = "viiwork_llamacpp.kit:cases"


@hookimpl
def viiwork_register_engine() -> type[Engine]:
    return LlamaCpp


@hookimpl
def viiwork_register_cache_transfer() -> type[CacheTransfer]:
    return LlamaCppCache


@hookimpl
def viiwork_register_doctor_check() -> type[DoctorCheck]:
    return LlamaCppCheck
