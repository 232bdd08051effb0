"""From the configuration to the backends that the fleet runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from viiwork_core.contracts.context import Context
from viiwork_core.contracts.engine import Spec, Vendor, Wire
from viiwork_core.engines.fleet import BackendPlan
from viiwork_core.kvshare.caches import SharedModel
from viiwork_core.registry.options import ResolvedModel

_log = structlog.get_logger("viiwork.node")

ContextFor = Callable[[str], Context]
"""Makes the services for a plugin object of that name."""


@dataclass(frozen=True)
class Planned:
    """One model, ready to run."""

    name: str
    backends: tuple[BackendPlan, ...]
    wire: Wire
    shared: SharedModel | None


def plan(model: ResolvedModel, context_for: ContextFor, *, caches: Path, share: bool) -> Planned:
    """Make the model's engine and lay out its backends.

    `share` False: no mesh to share caches with, so none is saved. Each backend has a cache folder of its own under
    `caches`.
    """
    config = model.config
    engine = model.engine(model.options, context_for(model.engine.name))
    if model.cache and not share:
        _log.warning("kv_share is off", model=config.name, reason="caches move in a secured mesh only")
    cache = model.cache(model.options, context_for(model.engine.name)) if model.cache and share else None
    specs = [_spec(model, index, caches if cache else None) for index in range(config.backends)]
    timeout = engine.startup_timeout if config.startup_timeout is None else config.startup_timeout
    backends = tuple(BackendPlan(spec, engine, cache, timeout) for spec in specs)
    shared = None
    if cache is not None and config.kv_share is not None:
        by_id: Mapping[str, Spec] = {one.id: one.spec for one in backends}
        shared = SharedModel(config.kv_share.group, config.kv_share.min_tokens, cache, by_id)
    return Planned(config.name, backends, model.engine.wire, shared)


def _spec(model: ResolvedModel, index: int, caches: Path | None) -> Spec:
    config = model.config
    first = index * config.gpus_per_backend
    return Spec(
        model=config.name,
        index=index,
        backends=config.backends,
        path=config.path,
        context=config.context,
        parallel=config.parallel,
        gpus=tuple(config.gpus[first : first + config.gpus_per_backend]),
        # Which vendor's cards these are is for the GPU inventory to say; until it exists nothing is pinned.
        vendor=Vendor.NONE,
        args=tuple(config.args),
        env=dict(config.env),
        cache_dir=caches / f"{_folder_name(config.name)}-{index}" if caches else None,
    )


def _folder_name(model: str) -> str:
    """A model's name as one path component, different names staying different."""
    return "".join(c if c.isalnum() or c in "-_." else f"%{ord(c):x}" for c in model).lstrip(".") or "model"
