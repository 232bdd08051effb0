"""The engine: what to start, and how a running Strata says that it is ready and what it does."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import ClassVar, Self

from anyio import to_thread

from viiwork_core import (
    Address,
    Context,
    Engine,
    EngineRefused,
    Launch,
    Load,
    PluginOptions,
    Prepares,
    Probe,
    SlotLoad,
    Spec,
    StreamEnd,
    UsageSource,
    Wire,
)
from viiwork_strata.launch import check_names, launch, read_config
from viiwork_strata.options import StrataOptions
from viiwork_strata.server import StrataServer, count


class StrataEngine(Engine, Prepares):
    """A Strata server, started from its JSON file."""

    name = "strata"
    Options = StrataOptions
    wire: ClassVar[Wire] = Wire(
        endpoints=frozenset({"/v1/chat/completions"}),
        keep_alive=False,
        usage=UsageSource.UNASKED,
        stream_end=StreamEnd.DONE,
    )
    startup_timeout = 1800.0

    def __init__(self, options: PluginOptions, context: Context) -> None:
        super().__init__(options, context)
        assert isinstance(options, StrataOptions)
        self._strata = options
        self._server = StrataServer()

    async def __aenter__(self) -> Self:
        await self._server.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._server.__aexit__(kind, error, trace)

    async def prepare(self, spec: Spec) -> None:
        """Refuse a JSON that cannot be read or serves another name. Raises ConfigError."""
        config = await to_thread.run_sync(read_config, spec)
        check_names(spec, config)

    def launch(self, spec: Spec) -> Launch:
        return launch(self._strata, spec)

    async def probe(self, address: Address) -> Probe:
        """Ready when /health says service strata, status ok, loaded true. While it loads, Strata's port is closed."""
        body = await self._server.health(address)
        if not isinstance(body, dict) or body.get("service") != "strata":
            return Probe(ready=False, reason="what answers on the port is not a Strata server")
        if body.get("status") != "ok":
            return Probe(ready=False, reason=f"Strata's status is {body.get('status')!r}")
        if body.get("loaded") is not True:
            # Also after the engine process died: the next request starts it again.
            return Probe(ready=False, reason="Strata's engine process has no model loaded")
        return Probe(ready=True)

    async def load(self, spec: Spec, address: Address) -> Load:
        each = [(count(entry, "n_ctx"), _slot(entry)) for entry in await self._server.slots(address)]
        return Load(
            slots=len(each),
            busy=sum(slot.busy for _, slot in each),
            context=min(context for context, _ in each),
            each=tuple(slot for _, slot in each),
        )


def _slot(entry: Mapping[str, object]) -> SlotLoad:
    busy = entry.get("is_processing")
    if not isinstance(busy, bool):
        raise EngineRefused(f"Strata's /slots has no usable is_processing: {busy!r}")
    # Strata up to 0.1.39 did not say how many tokens a slot holds.
    tokens = count(entry, "n_prompt_tokens") if "n_prompt_tokens" in entry else None
    return SlotLoad(id=count(entry, "id"), busy=busy, tokens=tokens)
