"""Cache transfer through Strata's session files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from anyio import to_thread

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
from viiwork_strata.config_file import read_config
from viiwork_strata.fingerprint import engine_args, executable, settings
from viiwork_strata.program import base
from viiwork_strata.server import StrataServer, count
from viiwork_strata.session_file import VERSION, read_session_file


class StrataCache(CacheTransfer):
    """Saves and restores the conversation that is live, which is all that Strata offers.

    Strata takes these calls only from a server with one slot on one GPU stage; others answer 501, which is
    CacheUnsupported here, or 400, which is EngineRefused.
    """

    engine = "strata"
    limits: ClassVar[CacheLimits] = CacheLimits(saves_live=True, refuses_links=True, replaces_live=True)

    def __init__(self, options: PluginOptions, context: Context) -> None:
        super().__init__(options, context)
        self._server = StrataServer()

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.__aexit__(kind, error, trace)

    async def fingerprint(self, spec: Spec, address: Address) -> Mapping[str, str]:
        """The session format's version, the engine's, and from the model's JSON what reaches the engine: `backend`,
        STRATA_KV_ROT, and every flag of `args`.

        Strata compares its version string, the backend, that variable, some of the flags, and the loaded model files,
        and does not tell which flags name these. So this is stricter than Strata: every flag counts, and a value that
        is a file or folder on disk counts by its content, not by its path. Backends whose args differ only in a cache
        size share nothing. Where a server does not tell its version, the binary's digest stands for it.

        Raises EngineRefused when the JSON, the binary or a file cannot be read.
        """
        try:
            config = (await to_thread.run_sync(read_config, spec)).values
        except ConfigError as error:
            raise EngineRefused(error.message, remedy=error.remedy) from error
        result = {"session format": str(VERSION), **settings(config, spec.env)}
        version = await self._server.version(address)
        result["engine"] = version or f"program {await self.context.digest(executable(config))}"
        for flag, values in engine_args(config).items():
            result[flag] = " ".join([await self._content(base(config), value) for value in values])
        return result

    async def _content(self, folder: Path, value: str) -> str:
        """The digest of the file or folder that the value names, else the value itself."""
        named = bool(value) and await to_thread.run_sync((folder / value).exists)
        return await self.context.digest(folder / value) if named else value

    async def save(self, spec: Spec, address: Address, session: SessionRef, name: str) -> Saved:
        """Save whatever conversation is live: Strata cannot be told which, so the session is not named to it."""
        body = await self._server.session(address, "save", name)
        return Saved(tokens=count(body, "n_saved"), bytes=count(body, "n_written"))

    async def restore(self, spec: Spec, address: Address, session: SessionRef, name: str) -> int:
        """Replace the live conversation. A refusal leaves it as it was."""
        return count(await self._server.session(address, "restore", name), "n_restored")

    async def holds(self, spec: Spec, address: Address, session: SessionRef) -> int | None:
        """Tokens of the live conversation, whosever it is; None with several slots: which is the session's is not
        said."""
        slots = await self._server.slots(address)
        # Servers up to 0.1.40 list one entry however many slots they run.
        if len(slots) != 1 or spec.parallel != 1 or "n_prompt_tokens" not in slots[0]:
            return None
        return count(slots[0], "n_prompt_tokens")

    def read(self, path: Path) -> CacheFile:
        return read_session_file(path)
