"""llama-server, with caches that move whatever the model is: what becomes of a plugin that does not see it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from viiwork_core import Address, CacheFile, CacheTransfer, Engine, Saved, SessionRef, Spec, hookimpl
from viiwork_llamacpp.cache import LlamaCppCache
from viiwork_llamacpp.engine import LlamaCpp


class Blind(LlamaCpp):
    name: ClassVar[str] = "blind"


class BlindCache(LlamaCppCache):
    """Neither looks at the model's file nor at what was saved, and does not compare it with the prompt."""

    engine: ClassVar[str] = "blind"

    async def fingerprint(self, spec: Spec, address: Address) -> Mapping[str, str]:
        return {"model": str(spec.path)}

    async def save(self, spec: Spec, address: Address, session: SessionRef, name: str) -> Saved:
        assert spec.cache_dir is not None
        answer = await self._server.act(address, session.slot or 0, "save", name)
        return Saved(answer.n_saved or 0, (spec.cache_dir / name).stat().st_size)

    async def covers(self, spec: Spec, address: Address, file: CacheFile, path: str, body: bytes) -> int | None:
        return None


@hookimpl
def viiwork_register_engine() -> type[Engine]:
    return Blind


@hookimpl
def viiwork_register_cache_transfer() -> type[CacheTransfer]:
    return BlindCache
