"""From the configuration to the backends that the fleet runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from viiwork_core.config.schema import ModelConfig
from viiwork_core.contracts.capabilities import Attaches, wire_of
from viiwork_core.contracts.context import Context
from viiwork_core.contracts.engine import Address, Engine, Spec, Vendor, Wire
from viiwork_core.engines.fleet import BackendPlan
from viiwork_core.errors import ConfigError, PluginError
from viiwork_core.kvshare.caches import SharedModel
from viiwork_core.registry.guard import attempt
from viiwork_core.registry.options import ResolvedModel

_log = structlog.get_logger("viiwork.node")

UNSHARED: Final = "caches move in a secured mesh only, or in an open one where kv_share.allow_open is true"

ContextFor = Callable[[str], Context]
"""Makes the services for a plugin object of that name."""


@dataclass(frozen=True)
class Planned:
    """One model, ready to run."""

    name: str
    backends: tuple[BackendPlan, ...]
    wire: Wire
    shared: SharedModel | None
    unshared: str | None
    """Why its caches are not shared, though its configuration says so."""

    first_byte_timeout: float | None = None
    """Seconds, as configured."""


def may_share(model: ModelConfig, *, in_mesh: bool, secured: bool) -> bool:
    """Whether the mesh is one for a model's caches to move in."""
    return in_mesh and (secured or (model.kv_share is not None and model.kv_share.allow_open))


def plan(
    model: ResolvedModel, context_for: ContextFor, *, caches: Path, share: bool, vendor: Vendor = Vendor.NONE
) -> Planned:
    """Make the model's engine and lay out its backends.

    `share` False: no mesh to share caches with, so none is saved. Each backend has a cache folder of its own under
    `caches`. `vendor`: whose cards the model's `gpus` are; NONE pins nothing. Raises ConfigError for options that
    cannot be used here and now, PluginError for an engine that fails.
    """
    config = model.config
    engine, addresses, wire = _engine(model, context_for(model.engine.name))
    unshared = UNSHARED if model.cache and not share else None
    if unshared is not None:
        _log.warning("kv_share is off", model=config.name, reason=unshared)
    cache = model.cache(model.options, context_for(model.engine.name)) if model.cache and share else None
    if config.gpus and vendor is Vendor.NONE and None in addresses:
        _log.warning("no card is pinned", model=config.name, reason="this node knows of no GPU; see gpu.vendor")
    count = len(addresses)
    specs = [_spec(model, index, count, caches if cache else None, vendor) for index in range(count)]
    timeout = engine.startup_timeout if config.startup_timeout is None else config.startup_timeout
    backends = tuple(BackendPlan(spec, engine, cache, timeout, at) for spec, at in zip(specs, addresses, strict=True))
    shared = None
    if cache is not None and config.kv_share is not None:
        by_id: Mapping[str, Spec] = {one.id: one.spec for one in backends}
        shared = SharedModel(config.kv_share.group, config.kv_share.min_tokens, cache, by_id)
    return Planned(config.name, backends, wire, shared, unshared, config.first_byte_timeout)


def _engine(model: ResolvedModel, context: Context) -> tuple[Engine, tuple[Address | None, ...], Wire]:
    """The model's engine, an address for each of its backends (None: to be started), and its Wire."""

    def make() -> tuple[Engine, tuple[Address | None, ...], Wire]:
        engine = model.engine(model.options, context)
        running = engine.addresses() if isinstance(engine, Attaches) else None
        return engine, (None,) * model.config.backends if running is None else tuple(running), wire_of(engine)

    try:
        made = attempt(f"making the engine {model.engine.name}", make)
    except ConfigError as error:
        raise ConfigError(f"model {model.config.name}: {error.message}", remedy=error.remedy) from error
    if not made[1]:
        raise PluginError(f"the engine {model.engine.name} of model {model.config.name} attaches to no server")
    return made


def _spec(model: ResolvedModel, index: int, backends: int, caches: Path | None, vendor: Vendor) -> Spec:
    config = model.config
    first = index * config.gpus_per_backend
    return Spec(
        model=config.name,
        index=index,
        backends=backends,
        path=config.path,
        context=config.context,
        parallel=config.parallel,
        gpus=tuple(config.gpus[first : first + config.gpus_per_backend]),
        vendor=vendor,
        args=tuple(config.args),
        env=dict(config.env),
        cache_dir=caches / f"{_folder_name(config.name)}-{index}" if caches else None,
    )


def _folder_name(model: str) -> str:
    """A model's name as one path component that is not hidden, different names staying different."""
    kept = (c.isalnum() or c in "-_" or (c == "." and place > 0) for place, c in enumerate(model))
    return "".join(c if keep else _escaped(c) for c, keep in zip(model, kept, strict=True))


def _escaped(text: str) -> str:
    """Two digits a byte: of digits without a fixed number nobody could tell where they end."""
    return "".join(f"%{byte:02x}" for byte in text.encode("utf-8", "surrogatepass"))
