"""vLLM as an engine of viiwork."""

from __future__ import annotations

from viiwork_core import Engine, hookimpl

from viiwork_vllm.engine import VllmEngine

VIIWORK_API = (1, 0)


@hookimpl
def viiwork_register_engine() -> type[Engine]:
    return VllmEngine
