"""Engines that run scripted_engine.py, one for each way in which engines differ on the wire. A stranger's plugin."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

import httpx

from viiwork_core import (
    Address,
    CacheFile,
    CacheTransfer,
    Engine,
    EngineUnreachable,
    Launch,
    Load,
    Probe,
    RunsOnCpu,
    Saved,
    Segment,
    SegmentKind,
    SessionRef,
    SlotLoad,
    Spec,
    StreamEnd,
    UsageSource,
    Wire,
    hookimpl,
)

SERVER = Path(__file__).with_name("scripted_engine.py")
PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/messages"})


class Scripted(Engine, RunsOnCpu):
    """Slots with names, addressed by `id_slot`."""

    name: ClassVar[str] = "scripted"
    wire: ClassVar[Wire] = Wire(endpoints=PATHS, slot_field="id_slot", session_header="X-Scripted-Session")

    async def __aenter__(self) -> Self:
        self._http = httpx.AsyncClient(timeout=5, trust_env=False)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    def launch(self, spec: Spec) -> Launch | None:
        closes = () if self.wire.keep_alive else ("--closes",)
        argv = (sys.executable, str(SERVER), "--port", str(spec.port), "--slots", str(spec.parallel), *closes)
        return Launch((*argv, *spec.args))

    async def probe(self, address: Address) -> Probe:
        return Probe(ready=bool((await self._get(address, "/ready"))["ready"]))

    async def load(self, spec: Spec, address: Address) -> Load:
        said = await self._get(address, "/load")
        each = tuple(SlotLoad(one["id"], one["busy"]) for one in said["each"]) if self.wire.slot_field else ()
        return Load(slots=said["slots"], busy=said["busy"], each=each)

    async def _get(self, address: Address, path: str) -> Any:
        try:
            return (await self._http.get(address.url + path)).json()
        except httpx.HTTPError as error:
            raise EngineUnreachable(repr(error)) from error


class Plain(Scripted):
    """Needs no edit of any request: no slot field, usage unasked."""

    name = "scripted-plain"
    wire = Wire(endpoints=PATHS)


class Done(Scripted):
    """Only `[DONE]` proves a stream, and every request has a connection of its own."""

    name = "scripted-done"
    wire = Wire(endpoints=PATHS, keep_alive=False, stream_end=StreamEnd.DONE)


class Usage(Scripted):
    """Tells usage when asked only."""

    name = "scripted-usage"
    wire = Wire(endpoints=PATHS, usage=UsageSource.INCLUDE_USAGE)


class Draining(Scripted):
    """Must be read to the end when a client leaves."""

    name = "scripted-draining"
    wire = Wire(endpoints=PATHS, drain_on_abort=True)


class Shared(Scripted):
    """As the first, with caches that move."""

    name = "scripted-shared"


class SharedCache(CacheTransfer):
    """Saves as long as the engine's gate "save" is shut, and then what the turn had.

    With VIIWORK_TEST_RESTORE in the model's env a restore waits for the gate "restore".
    """

    engine = "scripted-shared"

    async def fingerprint(self, spec: Spec, address: Address) -> Mapping[str, str]:
        return {"format": "scripted 1"}

    async def save(self, spec: Spec, address: Address, session: SessionRef, name: str) -> Saved:
        await self._passed(address, "save")
        assert spec.cache_dir is not None
        (spec.cache_dir / name).write_bytes(b"cache!")
        return Saved(tokens=6, bytes=6)

    async def restore(self, spec: Spec, address: Address, session: SessionRef, name: str) -> int:
        if "VIIWORK_TEST_RESTORE" in spec.env:
            await self._passed(address, "restore")
        return 6

    async def _passed(self, address: Address, gate: str) -> None:
        try:
            async with httpx.AsyncClient(timeout=60, trust_env=False) as http:
                await http.get(f"{address.url}/wait/{gate}")
        except httpx.HTTPError as error:
            raise EngineUnreachable(repr(error)) from error

    async def holds(self, spec: Spec, address: Address, session: SessionRef) -> int | None:
        return None

    def read(self, path: Path) -> CacheFile:
        return CacheFile(tokens=6, ids=None, segments=(Segment(0, 6, SegmentKind.OPAQUE),))


@hookimpl
def viiwork_register_engine() -> list[type[Engine]]:
    return [Scripted, Plain, Done, Usage, Draining, Shared]


@hookimpl
def viiwork_register_cache_transfer() -> type[CacheTransfer]:
    return SharedCache
