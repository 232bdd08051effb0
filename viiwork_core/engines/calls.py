"""What a supervisor asks of the plugin objects of one model, each question under the guard and a deadline."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeVar

import anyio
import structlog

from viiwork_core.clock import Clock
from viiwork_core.contracts.cache import CacheTransfer
from viiwork_core.contracts.capabilities import Advises, Prepares, Versioned, WarmsUp
from viiwork_core.contracts.engine import Address, Engine, Launch, Load, Probe, Spec
from viiwork_core.errors import EngineUnreachable, ViiworkError
from viiwork_core.registry.guard import Guard

_log = structlog.get_logger("viiwork.engines")

T = TypeVar("T")

VERSION: Final = re.compile(r"[A-Za-z0-9.+_-]{1,40}")
"""What an engine's version is made of."""

LOAD_TIMEOUT = 3.0
"""Seconds; a load older than that is not used by anybody."""
_PREPARE_TIMEOUT = 30.0
_MOST_ADVICE = 20
_OPEN_TIMEOUT = 30.0
_CLOSE_TIMEOUT = 5.0
_FINGERPRINT_TIMEOUT = 3600.0
_SLACK = 2.0
"""What a plugin is granted over our own time limit before its lateness is held against it."""

_LATE = 0.05
"""Seconds that our own timer may be late before it proves nothing."""


class EngineCalls:
    """One engine instance behind its guard. All backends of a model share it, and so the strikes."""

    def __init__(self, engine: Engine, *, clock: Clock, timeout: float) -> None:
        self.name = engine.name
        self._engine = engine
        self._prepares = engine if isinstance(engine, Prepares) else None
        self._advises = engine if isinstance(engine, Advises) else None
        self._advised: set[str] = set()
        self._versioned = engine if isinstance(engine, Versioned) else None
        self._warms_up = engine if isinstance(engine, WarmsUp) else None
        self._guard = Guard(f"engine {engine.name}", clock=clock, on_strike=_strike)
        self._timeout = timeout

    async def open(self) -> None:
        """Raises PluginError, or whatever error the plugin raises on purpose."""
        await self._guard.call("open", _OPEN_TIMEOUT, self._engine.__aenter__)

    async def close(self) -> None:
        await self._guard.call("close", _CLOSE_TIMEOUT, lambda: self._engine.__aexit__(None, None, None))

    async def launch(self, spec: Spec) -> Launch | None:
        """Prepare, then say what to start. Raises ConfigError, PluginError, or what `prepare` met on its way."""

        async def make() -> Launch | None:
            return _checked(self._engine.launch(spec), Launch | None)

        if self._prepares is not None:
            prepares = self._prepares
            await self._guard.call("prepare", _PREPARE_TIMEOUT, lambda: prepares.prepare(spec))
        return await self._guard.call("launch", _CLOSE_TIMEOUT, make)

    async def advice(self, spec: Spec) -> tuple[str, ...]:
        """What the engine has to say about a backend that was just prepared. Raises PluginError, or the engine's own
        errors."""
        if self._advises is None:
            return ()
        advises = self._advises

        async def make() -> tuple[str, ...]:
            return tuple(" ".join(_checked(one, str).split()) for one in await advises.advice(spec))[:_MOST_ADVICE]

        return await self._guard.call("advice", _PREPARE_TIMEOUT, make)

    async def advise(self, spec: Spec) -> None:
        """Log the advice, each sentence once for the model."""
        try:
            said = await self.advice(spec)
        except ViiworkError as error:
            _log.warning("an engine has no advice", backend=f"{spec.model}/{spec.index}", reason=told(error))
            return
        for advice in said:
            if advice not in self._advised:
                self._advised.add(advice)
                _log.warning(f"advice: {advice}", backend=f"{spec.model}/{spec.index}")

    @property
    def stop_timeout(self) -> float:
        """Seconds for the process's own end."""
        return self._engine.stop_timeout

    async def warm_up(self) -> float:
        """Seconds of unbroken readiness before the first request. Raises PluginError."""
        if self._warms_up is None:
            return 0.0
        warms_up = self._warms_up

        async def make() -> float:
            return float(_checked(warms_up.warm_up(), int | float))

        return await self._guard.call("warm_up", _CLOSE_TIMEOUT, make)

    async def probe(self, address: Address) -> Probe:
        """Raises EngineUnreachable, also when the time is up; PluginError says nothing about the engine's health."""

        async def make() -> Probe:
            return _checked(await _in_time(self._timeout, lambda: self._engine.probe(address)), Probe)

        return await self._guard.call("probe", 2 * self._timeout + _SLACK, make)

    async def load(self, spec: Spec, address: Address) -> Load:
        """Raises EngineUnreachable, also when the time is up, EngineRefused or PluginError."""

        async def make() -> Load:
            return _checked(await _in_time(LOAD_TIMEOUT, lambda: self._engine.load(spec, address)), Load)

        return await self._guard.call("load", 2 * LOAD_TIMEOUT + _SLACK, make)

    async def version(self, address: Address) -> str | None:
        """What the engine says of its version; None: nothing, or nothing that could be one. An error is logged."""
        if self._versioned is None:
            return None
        versioned = self._versioned

        async def make() -> str | None:
            said = _checked(await _in_time(self._timeout, lambda: versioned.version(address)), str | None)
            if said is not None and not VERSION.fullmatch(said):
                raise ValueError(f"{said[:60]!r} is no version: at most 40 of A-Za-z0-9.+_-")
            return said

        try:
            return await self._guard.call("version", 2 * self._timeout + _SLACK, make)
        except ViiworkError as error:
            _log.warning("an engine does not tell its version", engine=self.name, reason=told(error))
            return None


class CacheCalls:
    """One cache transfer instance behind its guard."""

    def __init__(self, cache: CacheTransfer, *, clock: Clock) -> None:
        self.name = f"{cache.engine} cache transfer"
        self._cache = cache
        self._guard = Guard(self.name, clock=clock, on_strike=_strike)

    async def open(self) -> None:
        """Raises PluginError, or whatever error the plugin raises on purpose."""
        await self._guard.call("open", _OPEN_TIMEOUT, self._cache.__aenter__)

    async def close(self) -> None:
        await self._guard.call("close", _CLOSE_TIMEOUT, lambda: self._cache.__aexit__(None, None, None))

    async def fingerprint(self, spec: Spec, address: Address) -> str:
        """One word for all that must be equal for a restore to be right. Raises EngineRefused or PluginError."""

        async def make() -> str:
            return digest_of(await self._cache.fingerprint(spec, address))

        return await self._guard.call("fingerprint", _FINGERPRINT_TIMEOUT, make)


def digest_of(parts: Mapping[str, str]) -> str:
    """BLAKE2b of a fingerprint's parts, 64 hex digits; their order does not matter."""
    canonical = json.dumps(sorted(parts.items()), separators=(",", ":"))
    return hashlib.blake2b(canonical.encode(), digest_size=32).hexdigest()


async def _in_time(seconds: float, ask: Callable[[], Awaitable[T]]) -> T:
    # A late answer is the engine's sickness. The guard's deadline, a little longer, is for a plugin that holds on.
    for _ in range(2):
        with anyio.move_on_after(seconds) as scope:
            return await ask()
        # A timer that is late itself was held up by somebody who blocked the loop, and so perhaps was the answer.
        if anyio.current_time() - scope.deadline < _LATE:
            break
    raise EngineUnreachable(f"no answer within {seconds:g} s")


def _strike(message: str) -> None:
    _log.warning("a plugin misbehaved", reason=message)


def _checked(value: T, kind: object) -> T:
    if not isinstance(value, kind):  # type: ignore[arg-type]  # a union of classes is one at run time
        raise TypeError(f"returned {type(value).__name__} where the contract says {kind}")
    return value


def told(error: ViiworkError) -> str:
    """An error's message with its remedy, for BackendView.reason."""
    return f"{error.message}; {error.remedy}" if error.remedy else error.message
