"""Cache transfer through the wrapper's /kv routes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self
from urllib.parse import quote

from viiwork_core import (
    Address,
    CacheFile,
    CacheLimits,
    CacheTransfer,
    ConfigError,
    Context,
    EngineRefused,
    PluginOptions,
    Saved,
    SessionRef,
    Spec,
)
from viiwork_mlx.cache_file import FORMAT, read_cache_file
from viiwork_mlx.control import MlxControl, count
from viiwork_mlx.folder import model_folder
from viiwork_mlx.launch import cache_arguments, read_versions
from viiwork_mlx.options import MlxOptions


class MlxCache(CacheTransfer):
    """Saves what the prompt cache holds of a session, and puts it into another server's prompt cache.

    mlx_lm finds a cached conversation by the longest common prefix, so a restored one is used by whatever prompt
    begins like it and discards nothing: there are no limits to state, and `covers` is left to the engine.
    """

    engine = "mlx"
    limits: ClassVar[CacheLimits] = CacheLimits()

    def __init__(self, options: PluginOptions, context: Context) -> None:
        super().__init__(options, context)
        assert isinstance(options, MlxOptions)
        self._mlx = options
        self._control = MlxControl()

    async def __aenter__(self) -> Self:
        await self._control.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._control.__aexit__(kind, error, trace)

    async def fingerprint(self, spec: Spec, address: Address) -> Mapping[str, str]:
        """The file's format, the versions of mlx and mlx_lm, the KV cache's type, and the digests of the model's
        folder, the adapter and the draft model ("none" without one). Raises EngineRefused."""
        try:
            versions = await read_versions(self._mlx, self.context, spec)
            arguments = cache_arguments(self._mlx, spec)
            folder = model_folder(spec)
        except ConfigError as error:
            raise EngineRefused(error.message, remedy=error.remedy) from error
        return {
            "cache format": FORMAT,
            "mlx": versions.mlx,
            "mlx_lm": versions.mlx_lm,
            "kv": arguments.kv,
            "model": await self.context.digest(folder),
            "adapter": await self._digest(arguments.adapter),
            "draft model": await self._digest(arguments.draft_model),
        }

    async def _digest(self, path: Path | None) -> str:
        return "none" if path is None else await self.context.digest(path)

    async def save(self, spec: Spec, address: Address, session: SessionRef, name: str) -> Saved:
        body = await self._control.post(address, "/kv/save", {"session": session.key, "filename": name})
        return Saved(tokens=count(body, "tokens"), bytes=count(body, "bytes"))

    async def restore(self, spec: Spec, address: Address, session: SessionRef, name: str) -> int:
        body = await self._control.post(address, "/kv/restore", {"session": session.key, "filename": name})
        return count(body, "tokens")

    async def holds(self, spec: Spec, address: Address, session: SessionRef) -> int:
        """Tokens of the session's last turn that the prompt cache still has; 0 for a session it has not seen."""
        return count(await self._control.get(address, f"/kv?session={quote(session.key, safe='')}"), "tokens")

    def read(self, path: Path) -> CacheFile:
        return read_cache_file(path)
