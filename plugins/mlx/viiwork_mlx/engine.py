"""The engine: what to start, and how a running MLX server says that it is ready and what it does."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import TracebackType
from typing import ClassVar, Self

from anyio import to_thread

from viiwork_core import (
    Address,
    Advises,
    Context,
    Engine,
    FolderListing,
    FoundModel,
    Launch,
    Load,
    Phase,
    PluginOptions,
    Prepares,
    Probe,
    Recognizes,
    RunsOnCpu,
    Spec,
    StreamEnd,
    UsageSource,
    Versioned,
    Wire,
)
from viiwork_mlx.advice import advice
from viiwork_mlx.control import MlxControl, count
from viiwork_mlx.folder import check_folders, model_folder, read_model
from viiwork_mlx.launch import Versions, cache_arguments, launch, read_versions
from viiwork_mlx.options import MlxOptions
from viiwork_mlx.recognition import program, recognize

VERSION = re.compile(r"[A-Za-z0-9.+_-]{1,40}")


class MlxEngine(Engine, Prepares, Advises, Versioned, RunsOnCpu, Recognizes):
    """mlx_lm's server in this plugin's wrapper: on Apple silicon, or slowly on a Linux CPU."""

    name = "mlx"
    Options = MlxOptions
    wire: ClassVar[Wire] = Wire(
        endpoints=frozenset({"/v1/chat/completions", "/v1/completions"}),
        keep_alive=False,
        usage=UsageSource.INCLUDE_USAGE,
        stream_end=StreamEnd.DONE,
        session_header="X-Viiwork-Session",
    )

    def __init__(self, options: PluginOptions, context: Context) -> None:
        super().__init__(options, context)
        assert isinstance(options, MlxOptions)
        self._mlx = options
        self._control = MlxControl()
        self._versions: Versions | None = None

    async def __aenter__(self) -> Self:
        await self._control.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._control.__aexit__(kind, error, trace)

    @classmethod
    def recognize(cls, folder: FolderListing) -> Sequence[FoundModel]:
        """The folder itself, if it is a model."""
        return tuple(recognize(folder))

    @classmethod
    def program(cls) -> str:
        """The Python that this runs with, if it has mlx_lm."""
        return program()

    async def prepare(self, spec: Spec) -> None:
        """Refuse incomplete folders, or a Python without mlx_lm. Raises ConfigError."""
        await to_thread.run_sync(check_folders, self._mlx, spec)
        self._versions = await read_versions(self._mlx, self.context, spec)

    async def advice(self, spec: Spec) -> Sequence[str]:
        """From the model's folder, the machine's memory, the options and the versions."""
        model = await to_thread.run_sync(read_model, model_folder(spec))
        arguments = cache_arguments(self._mlx, spec)
        return tuple(advice(spec, self._mlx, model, arguments, self._versions))

    def launch(self, spec: Spec) -> Launch:
        return launch(self._mlx, self.context, spec)

    async def probe(self, address: Address) -> Probe:
        """Ready when /health says so, which the wrapper does once one token was generated."""
        status, body = await self._control.health(address)
        said = body.get("status") if isinstance(body, dict) else None
        if said == "loading":
            return Probe(ready=False, phase=Phase.LOADING)
        if status != 200 or said != "ok":
            return Probe(ready=False, reason=f"/health answered {status}, status {said!r}")
        return Probe(ready=True, progress=1.0)

    async def version(self, address: Address) -> str | None:
        """That of mlx_lm; None: the server does not say."""
        _, body = await self._control.health(address)
        said = body.get("mlx_lm") if isinstance(body, dict) else None
        return said if isinstance(said, str) and VERSION.fullmatch(said) else None

    async def load(self, spec: Spec, address: Address) -> Load:
        body = await self._control.get(address, "/slots")
        context = count(body, "context") if body.get("context") is not None else None
        return Load(count(body, "slots"), count(body, "busy"), count(body, "waiting"), context)
