"""The fake engine as a plugin: register this module and configure `engine: fake`.

Every fault of the fake engine's command line is an option of the same name, so a test writes it into the
configuration or into FakeOptions.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, ClassVar, Self

import httpx
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from viiwork_core.contracts.cache import (
    CacheFile,
    CacheTransfer,
    Saved,
    Segment,
    SegmentKind,
    SessionRef,
)
from viiwork_core.contracts.capabilities import RunsOnCpu
from viiwork_core.contracts.context import Context
from viiwork_core.contracts.engine import Address, Engine, Launch, Load, Probe, SlotLoad, Spec, Wire
from viiwork_core.contracts.options import PluginOptions
from viiwork_core.errors import CacheRefused, EngineRefused, EngineUnreachable
from viiwork_core.hookspecs import hookimpl
from viiwork_core.testing import fake_model
from viiwork_core.testing.fake_engine import SESSION_HEADER


class FakeOptions(PluginOptions):
    """The `fake:` block of a model. `python -m viiwork_core.testing.fake_engine --help` says what each does."""

    load_seconds: float = Field(default=0.0, ge=0)
    first_byte_seconds: float = Field(default=0.0, ge=0)
    token_seconds: float = Field(default=0.0, ge=0)
    http10: bool = False
    only_model: bool = False
    answer_status: tuple[int, ...] = (200,)
    cut_after: int | None = Field(default=None, ge=1)
    wedge_slot: int | None = Field(default=None, ge=0)
    crash_after: float | None = Field(default=None, ge=0)
    exit_at_start: bool = False
    ignore_sigterm: bool = False

    def argv(self) -> list[str]:
        """The options that differ from their default, as the command line has them."""
        words: list[str] = []
        for name in self.model_fields_set:
            value = getattr(self, name)
            if value is None or value is False:
                continue
            words.append(f"--{name.replace('_', '-')}")
            if isinstance(value, tuple):
                words += [str(part) for part in value]
            elif value is not True:
                words.append(str(value))
        return words


class _Slot(BaseModel):
    """What counts of an entry of /slots."""

    id: int = Field(ge=0)
    n_ctx: int = Field(gt=0)
    is_processing: bool
    n_prompt_tokens: int | None = Field(default=None, ge=0)


_SLOTS = TypeAdapter(Annotated[list[_Slot], Field(min_length=1)])


class FakeServerClient:
    """The fake engine's control calls, with its failures as the contract's errors. `async with` opens and closes."""

    def __init__(self) -> None:
        self._http = httpx.AsyncClient(timeout=httpx.Timeout(10.0), trust_env=False)

    async def __aenter__(self) -> Self:
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    async def send(self, method: str, address: Address, path: str, body: Any = None) -> httpx.Response:
        """Raises EngineUnreachable."""
        try:
            return await self._http.request(method, address.url + path, json=body)
        except httpx.HTTPError as error:
            raise EngineUnreachable(f"the fake engine at {address.url} did not answer: {error!r}") from error

    async def ask(self, method: str, address: Address, path: str, body: Any = None) -> Any:
        """The JSON of a 200 answer. Raises EngineUnreachable, EngineRefused."""
        answer = await self.send(method, address, path, body)
        if answer.status_code != httpx.codes.OK:
            raise EngineRefused(f"the fake engine answered {path} with {answer.status_code}: {answer.text}")
        try:
            return answer.json()
        except ValueError as error:
            raise EngineRefused(f"the fake engine answered {path} with something other than JSON") from error


class FakeEngine(Engine, RunsOnCpu):
    """The fake engine, pinned by slot."""

    name = "fake"
    Options = FakeOptions
    wire: ClassVar[Wire] = Wire(
        endpoints=frozenset({"/v1/chat/completions"}), slot_field="id_slot", session_header=SESSION_HEADER
    )
    startup_timeout = 20.0

    def __init__(self, options: PluginOptions, context: Context) -> None:
        super().__init__(options, context)
        self._client = FakeServerClient()

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    def launch(self, spec: Spec) -> Launch | None:
        assert isinstance(self.options, FakeOptions)
        argv = [sys.executable, "-m", "viiwork_core.testing.fake_engine"]
        argv += ["--host", spec.host, "--port", str(spec.port), "--alias", spec.model]
        argv += ["--slots", str(spec.parallel), "--context", str(spec.context)]
        if spec.path is not None:
            argv += ["--model", str(spec.path)]
        if spec.cache_dir is not None:
            argv += ["--slot-save-path", str(spec.cache_dir)]
        return Launch((*argv, *self.options.argv(), *spec.args))

    async def probe(self, address: Address) -> Probe:
        answer = await self._client.send("GET", address, "/health")
        if answer.status_code == httpx.codes.OK:
            return Probe(ready=True)
        return Probe(ready=False, reason=f"/health answers {answer.status_code}")

    async def load(self, spec: Spec, address: Address) -> Load:  # noqa: ARG002
        entries = await self._client.ask("GET", address, "/slots")
        try:
            slots = _SLOTS.validate_python(entries)
        except ValidationError as error:
            raise EngineRefused(f"/slots is not what the fake engine says: {error}") from error
        each = tuple(SlotLoad(slot.id, slot.is_processing, slot.n_prompt_tokens) for slot in slots)
        context = min(slot.n_ctx for slot in slots)
        return Load(slots=len(each), busy=sum(slot.busy for slot in each), context=context, each=each)


class FakeCacheTransfer(CacheTransfer):
    """Saves and restores the fake engine's slots."""

    engine = "fake"

    def __init__(self, options: PluginOptions, context: Context) -> None:
        super().__init__(options, context)
        self._client = FakeServerClient()

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._client.__aexit__(kind, error, trace)

    async def fingerprint(self, spec: Spec, address: Address) -> Mapping[str, str]:
        del address
        model = "none" if spec.path is None else await self.context.digest(spec.path)
        return {"format": "fake-kv 1", "model": model}

    async def save(self, spec: Spec, address: Address, session: SessionRef, name: str) -> Saved:  # noqa: ARG002
        body = {"filename": name, "session": session.key}
        said = await self._client.ask("POST", address, f"/slots/{session.slot}?action=save", body)
        return Saved(tokens=said["n_saved"], bytes=said["n_written"])

    async def restore(self, spec: Spec, address: Address, session: SessionRef, name: str) -> int:  # noqa: ARG002
        body = {"filename": name, "session": session.key}
        said = await self._client.ask("POST", address, f"/slots/{session.slot}?action=restore", body)
        return int(said["n_restored"])

    async def holds(self, spec: Spec, address: Address, session: SessionRef) -> int | None:  # noqa: ARG002
        state = await self._client.ask("GET", address, "/fake/state")
        return max((slot["tokens"] for slot in state["slots"] if slot["session"] == session.key), default=0)

    def read(self, path: Path) -> CacheFile:
        try:
            rows = fake_model.read_cache(path)
        except fake_model.BadCacheFile as error:
            raise CacheRefused(str(error)) from error
        size = len(rows) * fake_model.ROW_BYTES
        header = Segment(0, fake_model.HEADER_BYTES, SegmentKind.OPAQUE)
        segments = (header, Segment(fake_model.HEADER_BYTES, size, SegmentKind.ROWS))
        return CacheFile(tokens=len(rows), ids=tuple(row.id for row in rows), segments=segments)


@hookimpl
def viiwork_register_engine() -> type[Engine]:
    return FakeEngine


@hookimpl
def viiwork_register_cache_transfer() -> type[CacheTransfer]:
    return FakeCacheTransfer


plugin = sys.modules[__name__]
"""What a test registers."""
