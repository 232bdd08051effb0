"""The engine: what to start, and how a running Strata says that it is ready and what it does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import ClassVar, Self

from anyio import to_thread

from viiwork_core import (
    Address,
    Advises,
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
    Versioned,
    WarmsUp,
    Wire,
)
from viiwork_strata.agreement import check, sharing_advice
from viiwork_strata.config_file import read_config, refusal
from viiwork_strata.launch import launch
from viiwork_strata.options import StrataOptions
from viiwork_strata.server import StrataServer, count

_VERSION = re.compile(r"[A-Za-z0-9.+_-]{1,40}")


class StrataEngine(Engine, Prepares, Advises, WarmsUp, Versioned):
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
    stop_timeout = 60.0
    """At SIGTERM the server asks its engine to quit, then terminates it, then kills it: 20 s each."""

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
        """Refuse a JSON that cannot be read or does not agree with the model's entry, and a `dir` without a server.

        Raises ConfigError, naming the key."""
        await to_thread.run_sync(self._check, spec)

    def _check(self, spec: Spec) -> None:
        check(spec, read_config(spec))
        if not (self._strata.dir / "serve" / "server.py").is_file():
            reason = f"{self._strata.dir} holds no serve/server.py"
            raise refusal(spec, "strata.dir", reason, "set it to the Strata checkout")

    async def advice(self, spec: Spec) -> Sequence[str]:
        """What keeps a shared model's conversations from being saved."""
        return sharing_advice(spec, await to_thread.run_sync(read_config, spec))

    def launch(self, spec: Spec) -> Launch:
        return launch(self._strata, spec)

    def warm_up(self) -> float:
        return self._strata.warmup

    async def version(self, address: Address) -> str | None:
        """As /v1/status tells it."""
        said = await self._server.version(address)
        return said if said is not None and _VERSION.fullmatch(said) else None

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
        entries = await self._server.slots(address)
        each = tuple(_slot(entry) for entry in entries)
        status = await self._server.status(address)
        return Load(
            slots=len(each),
            busy=_busy(each, status),
            waiting=_waiting(status),
            context=min(count(entry, "n_ctx") for entry in entries),
            # Which of several slots a request gets is the engine's choice, so that their numbers mean nothing to us.
            each=each if len(each) == 1 else (),
        )


def _busy(each: tuple[SlotLoad, ...], status: Mapping[str, object]) -> int:
    """A request alone runs outside the batch, and all its slots look idle meanwhile."""
    alone = len(each) > 1 and status.get("busy") is True
    return max(sum(slot.busy for slot in each), int(alone))


def _waiting(status: Mapping[str, object]) -> int | None:
    queued = status.get("queued")
    return queued if isinstance(queued, int) and not isinstance(queued, bool) and queued >= 0 else None


def _slot(entry: Mapping[str, object]) -> SlotLoad:
    busy = entry.get("is_processing")
    if not isinstance(busy, bool):
        raise EngineRefused(f"Strata's /slots has no usable is_processing: {busy!r}")
    # Strata up to 0.1.39 did not say how many tokens a slot holds.
    tokens = count(entry, "n_prompt_tokens") if "n_prompt_tokens" in entry else None
    return SlotLoad(id=count(entry, "id"), busy=busy, tokens=tokens)
