"""A configuration of which something is wrong, and what can be looked at further all the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from pydantic import ValidationError

from viiwork_core.config.blocks import OpenBlock
from viiwork_core.config.conflicts import sound_models
from viiwork_core.config.model import ModelConfig
from viiwork_core.config.problems import Problem, SourceMap, as_error
from viiwork_core.config.schema import Config, ListenersConfig, MeshConfig, RoutingConfig
from viiwork_core.errors import ConfigError

B = TypeVar("B", bound=OpenBlock)


class UnsoundConfig(ConfigError):
    """What pass 1 has found, a line each. Pass 2 looks at the rest: whoever mends a file hears of all at once."""

    def __init__(self, problems: Iterable[Problem], source: SourceMap, data: Mapping[str, Any]) -> None:
        self.problems = tuple(problems)
        self.source = source
        super().__init__(as_error(self.problems, source).message)
        places = {problem.where[:2] for problem in self.problems if problem.what.startswith("unknown key")}
        models, raw = sound_models(data), data.get("models")
        self.models: Mapping[int, ModelConfig] = {n: one for n, one in models.items() if ("models", n) not in places}
        """Those that are right so far, by their place in the file."""

        self.engines: Mapping[int, str] = {
            n: one["engine"]
            for n, one in enumerate(raw if isinstance(raw, list) else [])
            if n not in self.models and isinstance(one, dict) and isinstance(one.get("engine"), str)
        }
        """What the others name."""

        routing = (
            _sound(RoutingConfig, data.get("routing", {})) or _sound(RoutingConfig, _policy(data)) or RoutingConfig()
        )
        mesh = _sound(MeshConfig, data.get("mesh", {})) or MeshConfig(network="none")
        listeners = _sound(ListenersConfig, data.get("listeners", {})) or ListenersConfig()
        self.rest = Config.model_construct(routing=routing, mesh=mesh, listeners=listeners)
        """Without models. A block that is wrong has its defaults, all but the policy."""


def _policy(data: Mapping[str, Any]) -> dict[str, Any]:
    routing = data.get("routing")
    if not isinstance(routing, dict) or not isinstance(name := routing.get("policy"), str):
        return {}
    return {key: routing[key] for key in ("policy", name) if key in routing}


def _sound(block: type[B], data: object) -> B | None:
    try:
        return block.model_validate(data)
    except ValidationError:
        return None
