"""llama-server as an engine."""

from __future__ import annotations

from types import TracebackType
from typing import ClassVar, Self

import httpx

from viiwork_core import (
    Address,
    Context,
    Engine,
    EngineRefused,
    Launch,
    Load,
    Phase,
    Prepares,
    Probe,
    RunsOnCpu,
    SlotLoad,
    Spec,
    StreamEnd,
    UsageSource,
    Versioned,
    Wire,
)
from viiwork_llamacpp.build import read_build
from viiwork_llamacpp.launch import (
    ENVIRONMENT,
    Help,
    Prepared,
    command_line,
    find_binary,
    machine,
    model_files,
    parse_help,
)
from viiwork_llamacpp.options import LlamaCppOptions
from viiwork_llamacpp.server import LlamaServer

ENDPOINTS = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/embeddings",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/rerank",
        "/v1/responses",
        "/completion",
        "/infill",
        "/tokenize",
        "/detokenize",
        "/apply-template",
    }
)


class LlamaCpp(Engine, RunsOnCpu, Prepares, Versioned):
    """One model's llama-servers."""

    name: ClassVar[str] = "llamacpp"
    Options = LlamaCppOptions
    wire: ClassVar[Wire] = Wire(
        endpoints=ENDPOINTS,
        usage=UsageSource.UNASKED,
        stream_end=StreamEnd.TRANSPORT,
        slot_field="id_slot",
    )
    startup_timeout: ClassVar[float] = 600.0

    def __init__(self, options: LlamaCppOptions, context: Context) -> None:
        super().__init__(options, context)
        self._options = options
        self._server = LlamaServer()
        self._prepared = Prepared()
        self._version: str | None = None

    async def __aenter__(self) -> Self:
        self._server.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.close()

    async def prepare(self, spec: Spec) -> None:
        """Find the binary and the model's files, and ask the binary which flags it has.

        Asked again before each launch: a build may have been replaced meanwhile, and a --help that failed once must
        not decide about the next launch.
        """
        files = model_files(spec.path, spec.model)
        binary = find_binary(self._options, spec.model)
        self._prepared = machine(binary, await self._read_help(binary), files)
        self._version = (await read_build(self.context.run_command, binary)).label

    async def _read_help(self, binary: str) -> Help:
        try:
            output = await self.context.run_command((binary, "--help"))
            return parse_help(output.text)
        except (EngineRefused, ValueError):
            return Help()

    def launch(self, spec: Spec) -> Launch:
        """The command line and environment of one backend."""
        return Launch(command_line(spec, self._options, self._prepared), ENVIRONMENT)

    async def probe(self, address: Address) -> Probe:
        """Ready when /health answers 200; while the model loads it answers 503 and says so."""
        reply = await self._server.health(address)
        if reply.status == httpx.codes.OK:
            return Probe(ready=True)
        return Probe(ready=False, phase=Phase.LOADING, reason=reply.words)

    async def load(self, spec: Spec, address: Address) -> Load:  # the contract's
        """What /slots says. It has no figure for waiting requests."""
        slots = await self._server.slots(address)
        return Load(
            slots=len(slots),
            busy=sum(slot.is_processing for slot in slots),
            context=min(slot.n_ctx for slot in slots),
            each=tuple(SlotLoad(slot.id, slot.is_processing, slot.n_prompt_tokens) for slot in slots),
        )

    async def version(self, address: Address) -> str | None:  # the contract's
        """The build number, e.g. b10068, or the commit; the server itself does not tell either reliably."""
        return self._version
