"""The engine: what to start, and how a running vLLM says that it is ready and what it does."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import ClassVar, Self

from anyio import to_thread
from viiwork_core import (
    Address,
    Advises,
    Context,
    Engine,
    Launch,
    Load,
    PluginOptions,
    Prepares,
    Probe,
    Spec,
    StreamEnd,
    UsageSource,
    Versioned,
    Wire,
)

from viiwork_vllm.launch import check_installation, launch
from viiwork_vllm.metrics import Pulse
from viiwork_vllm.model import advice, read_config
from viiwork_vllm.options import VllmOptions
from viiwork_vllm.server import VllmServer


class VllmEngine(Engine, Prepares, Advises, Versioned):
    """`vllm serve`, on one card or several."""

    name = "vllm"
    Options = VllmOptions
    wire: ClassVar[Wire] = Wire(
        endpoints=frozenset({"/v1/chat/completions", "/v1/completions"}),
        usage=UsageSource.INCLUDE_USAGE,
        stream_end=StreamEnd.TRANSPORT,
    )
    startup_timeout = 1800.0
    """Reading the weights, compiling, and capturing CUDA graphs."""

    stop_timeout = 30.0
    """At SIGTERM it ends its engine and workers in turn; a second signal cuts that short."""

    def __init__(self, options: PluginOptions, context: Context) -> None:
        super().__init__(options, context)
        assert isinstance(options, VllmOptions)
        self._vllm = options
        self._server = VllmServer()
        self._pulse = Pulse()

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.__aexit__(kind, error, trace)

    async def prepare(self, spec: Spec) -> None:
        """Refuse a missing vLLM, or an incomplete model folder. Raises ConfigError."""
        await to_thread.run_sync(check_installation, self._vllm, spec)

    async def advice(self, spec: Spec) -> Sequence[str]:
        return tuple(advice(spec, await to_thread.run_sync(read_config, spec)))

    def launch(self, spec: Spec) -> Launch:
        return launch(self._vllm, spec)

    async def probe(self, address: Address) -> Probe:
        """Ready when /health says 200. While the model loads, the port is closed: EngineUnreachable."""
        status = await self._server.health(address)
        if status == 200:
            return Probe(ready=True, progress=1.0)
        if status == 503:
            return Probe(ready=False, reason="vLLM says that its engine process is dead")
        return Probe(ready=False, reason=f"vLLM's /health answered {status}")

    async def load(self, spec: Spec, address: Address) -> Load:
        metrics = await self._server.metrics(address)
        context = await self._server.context(address, spec.model)
        if not self._pulse.beats(address, metrics):
            return Load(slots=spec.parallel, busy=None, context=context)
        return Load(spec.parallel, metrics.running, metrics.waiting, context)

    async def version(self, address: Address) -> str | None:
        """As the server says: `vllm --version` takes up to 20 seconds, and a command of a plugin has 10."""
        return await self._server.version(address)
