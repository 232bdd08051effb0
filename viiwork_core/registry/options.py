"""The second pass over the configuration: names become classes, plugins' blocks become their options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from pydantic import ValidationError

from viiwork_core.config.problems import Location, Problem, as_error, from_validation, near_miss
from viiwork_core.config.schema import Config, MeshConfig, ModelConfig
from viiwork_core.config.unsound import UnsoundConfig
from viiwork_core.contracts.cache import CacheTransfer
from viiwork_core.contracts.capabilities import Attaches, RunsOnCpu
from viiwork_core.contracts.discovery import Discovery
from viiwork_core.contracts.engine import Engine
from viiwork_core.contracts.listener import Listener
from viiwork_core.contracts.options import PluginOptions
from viiwork_core.contracts.policy import Policy
from viiwork_core.errors import ConfigError, ViiworkError
from viiwork_core.registry.guard import attempt
from viiwork_core.registry.registry import Registry

T = TypeVar("T")

_SEEDS = "seeds"
"""The discovery whose options are mesh.seeds."""

_PACKAGES = {"lan": "'viiwork[mdns]'", "tailnet": "'viiwork[tailscale]'"}
"""The extra of this distribution that brings a discovery for a network, quoted for a shell."""

OF_A_PROCESS = ("path", "gpus", "gpus_per_backend", "startup_timeout", "args", "env")
"""Keys of a model that say how its processes are started."""


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model with the classes that its configuration names."""

    config: ModelConfig
    engine: type[Engine]
    options: PluginOptions
    """The engine's, and its cache transfer's."""

    cache: type[CacheTransfer] | None
    """None: kv_share is off."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The configuration with every name looked up and every plugin's options read."""

    models: tuple[ResolvedModel, ...]
    policy: type[Policy]
    policy_options: PluginOptions
    discoveries: tuple[tuple[type[Discovery], PluginOptions], ...]
    """The sources that are on, each once."""

    listeners: tuple[tuple[type[Listener], PluginOptions], ...] = ()
    """Those that the configuration names."""


def resolve(config: Config, registry: Registry) -> Resolved:
    """Look up what the configuration names. Raises one ConfigError with a line for each problem of any block."""
    return _Resolution(config, registry).run()


def with_the_rest(error: UnsoundConfig, registry: Registry) -> ConfigError:
    """What pass 1 has found, and with it what pass 2 finds in all that is right so far."""
    found = _Resolution(error.rest, registry).problems(error.models, error.engines)
    known = {problem.where for problem in error.problems}
    return as_error([*error.problems, *(problem for problem in found if problem.where not in known)], error.source)


class _Resolution:
    def __init__(self, config: Config, registry: Registry) -> None:
        self._config = config
        self._registry = registry
        self._problems: list[Problem] = []

    def problems(self, models: Mapping[int, ModelConfig], engines: Mapping[int, str]) -> list[Problem]:
        """All there are, with these models at their places, and those of which only the engine can be looked up."""
        for index, model in models.items():
            self._model(index, model)
        for index, name in engines.items():
            self._found(("models", index, "engine"), partial(self._registry.engine, name))
        self._policy()
        self._discoveries(self._config.mesh)
        self._listeners()
        return self._problems

    def run(self) -> Resolved:
        models = [self._model(index, model) for index, model in enumerate(self._config.models)]
        policy = self._policy()
        discoveries, listeners = self._discoveries(self._config.mesh), self._listeners()
        if self._problems or policy is None:
            raise as_error(self._problems, self._config.source)
        return Resolved(tuple(model for model in models if model is not None), *policy, discoveries, listeners)

    def _model(self, index: int, model: ModelConfig) -> ResolvedModel | None:
        where: Location = ("models", index)
        cache = None
        if model.kv_share is not None:
            cache = self._found((*where, "kv_share"), lambda: self._registry.cache_transfer(model.engine))
        engine = self._found((*where, "engine"), lambda: self._registry.engine(model.engine))
        if engine is None:
            return None
        if issubclass(engine, Attaches):
            self._problems += _unused(model, where)
        elif not model.gpus and not issubclass(engine, RunsOnCpu):
            what = f"is empty, and {engine.name} does not run without a GPU"
            self._problems.append(Problem((*where, "gpus"), what, "list the indices of this model's GPUs"))
        options = self._options(engine.Options, model.block, (*where, model.engine))
        return None if options is None else ResolvedModel(model, engine, options, cache)

    def _listeners(self) -> tuple[tuple[type[Listener], PluginOptions], ...]:
        found = []
        for name, block in self._config.listeners.blocks.items():
            where: Location = ("listeners", name)
            cls = self._found(where, partial(self._registry.listener, name))
            options = self._options(cls.Options, block, where) if cls is not None else None
            if cls is not None and options is not None:
                found.append((cls, options))
        return tuple(found)

    def _policy(self) -> tuple[type[Policy], PluginOptions] | None:
        routing = self._config.routing
        policy = self._found(("routing", "policy"), lambda: self._registry.policy(routing.policy))
        if policy is None:
            return None
        options = self._options(policy.Options, routing.blocks.get(policy.name, {}), ("routing", policy.name))
        return None if options is None else (policy, options)

    def _discoveries(self, mesh: MeshConfig) -> tuple[tuple[type[Discovery], PluginOptions], ...]:
        """A network turns on the sources that serve it; a source's own block and a list of seeds turn it on too."""
        active = self._of_network(mesh)
        blocks: dict[type[Discovery], tuple[Location, Mapping[str, Any]]] = {}
        for key, block in mesh.blocks.items():
            cls = self._source(key)
            if cls is not None and blocks.setdefault(cls, (("mesh", key), block))[0][-1] != key:
                self._problems.append(Problem(("mesh", key), f"is about {cls.name}, as mesh.{blocks[cls][0][-1]} is"))
            if cls is not None and key == cls.name and mesh.network != "none":
                active.append(cls)
        if mesh.seeds and (seeds := self._found(("mesh", "seeds"), lambda: self._registry.discovery(_SEEDS))):
            active.append(seeds)
            blocks[seeds] = (("mesh", "seeds"), {"addresses": mesh.seeds})
        blocks |= {cls: (("mesh", cls.name), {}) for cls in active if cls not in blocks}
        read = {cls: self._options(cls.Options, block, where) for cls, (where, block) in blocks.items()}
        sound = [(cls, options) for cls, options in read.items() if options is not None]
        return tuple((cls, options) for cls, options in sound if self._on(cls, options, by_default=cls in active))

    def _on(self, cls: type[Discovery], options: PluginOptions, *, by_default: bool) -> bool:
        """What a source's options say of it goes before what the network says, unless there is to be no mesh."""
        if self._config.mesh.network == "none":
            return False
        try:
            wanted = attempt(f"asking whether {cls.name} is on", lambda: cls.wanted(options))
        except ViiworkError as error:
            self._problems.append(Problem(("mesh", cls.name), error.message, error.remedy))
            return False
        return by_default if wanted is None else wanted

    def _of_network(self, mesh: MeshConfig) -> list[type[Discovery]]:
        if mesh.network in {"none", "seeds"}:
            return []
        if mesh.network is not None:
            found = list(self._registry.discoveries(mesh.network))
            what, package = f"no installed discovery serves {mesh.network}", _PACKAGES.get(mesh.network)
        else:
            names = [name for name in self._registry.names("discovery") if name != _SEEDS]
            found = [cls for cls in map(self._registry.discovery, names) if cls.networks]
            what, package = "is not set, and no discovery is installed", " or ".join(_PACKAGES.values())
        if not found:
            remedy = f"pip install {package}, or set it to seeds or none" if package else self._networks(mesh.network)
            self._problems.append(Problem(("mesh", "network"), what, remedy))
        return found

    def _networks(self, unknown: str | None) -> str:
        known = sorted({*_PACKAGES, *self._registry.names("discovery"), "none"})
        return near_miss(unknown or "", known) or f"set it to one of {', '.join(known)}"

    def _source(self, key: str) -> type[Discovery] | None:
        """The discovery that a block of mesh belongs to: by its name, or as the only one of that network."""
        serving = self._registry.discoveries(key)
        if key not in self._registry.names("discovery") and len(serving) == 1:
            return serving[0]
        return self._found(("mesh", key), lambda: self._registry.discovery(key))

    def _found(self, where: Location, look_up: Callable[[], T]) -> T | None:
        try:
            return look_up()
        except ConfigError as error:
            self._problems.append(Problem(where, error.message, error.remedy))
            return None

    def _options(self, model: type[PluginOptions], block: Mapping[str, Any], where: Location) -> PluginOptions | None:
        """The block as the plugin's options; its validators are plugin code."""
        try:
            return attempt("reading the options", lambda: model.model_validate(block), passing=(ValidationError,))
        except ValidationError as error:
            self._problems += from_validation(error, where, model)
        except ViiworkError as error:
            self._problems.append(Problem(where, error.message, error.remedy))
        return None


def _unused(model: ModelConfig, where: Location) -> list[Problem]:
    """Keys about a process, in a model whose engine starts none."""
    given = [key for key in OF_A_PROCESS if key in model.model_fields_set]
    what = f"has no meaning for {model.engine}, whose servers run already"
    return [Problem((*where, key), what, "remove it") for key in given]
