"""Reading viiwork.yaml: YAML with line marks, then pass 1 over the core's keys, all problems at once."""

from __future__ import annotations

import copy
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from viiwork_core.config import paths
from viiwork_core.config.blocks import OpenBlock
from viiwork_core.config.conflicts import conflicts
from viiwork_core.config.document import parse
from viiwork_core.config.problems import Location, Problem, from_validation, near_miss
from viiwork_core.config.schema import Config, MeshConfig, ModelConfig, RoutingConfig
from viiwork_core.config.unsound import UnsoundConfig
from viiwork_core.errors import ConfigError

_MAX_BYTES = 1 << 20

_V1 = {"server", "model", "gpus", "backend", "balancer", "peers"}

NOT_BUILT: tuple[Location, ...] = (
    ("power",),
    ("energy",),
    ("cost",),
    ("pipelines",),
    ("update",),
    ("viiwork_parrot",),
    ("api", "catalog", "upstream"),
    ("api", "catalog", "upstream_ttl"),
)
"""Keys that people bring along and that mean nothing here yet: a warning each, no error."""


def load_config(path: Path | None, environ: Mapping[str, str]) -> Config:
    """The configuration in `path`; None: in the usual places, else all defaults.

    Raises ConfigError with one line per problem: "models[0].name (line 3): what; remedy". It is an UnsoundConfig where
    pass 2 has something to look at.
    """
    path = find_config(environ) if path is None else path
    text = "" if path is None else _read(path)
    return parse_config(text, environ, origin="" if path is None else str(path))


def find_config(environ: Mapping[str, str]) -> Path | None:
    """The file that is read when none is named; None: there is none."""
    # Not Path.exists, which raises for a folder that this user may not look into.
    return next((place for place in paths.config_files(environ) if os.access(place, os.F_OK)), None)


def parse_config(text: str, environ: Mapping[str, str], *, origin: str = "configuration") -> Config:
    """The configuration in a YAML text; `origin` names the text in errors about the whole of it."""
    data, source = parse(text, origin)
    if _V1 & data.keys():
        raise ConfigError(f"{origin}: v1 config: see docs/migrating-to-v2.md")
    data, warnings = _without_unbuilt(data)
    _note_power_limit(data, warnings)
    problems = _settle_performance(data) + _stray_keys(data)
    _fill_in(data, environ)
    config: Config | None = None
    try:
        config = Config.model_validate(data)
    except ValidationError as error:
        problems += from_validation(error, (), Config)
    problems += conflicts(data)
    if config is None or problems:
        raise UnsoundConfig(problems, source, data)
    return config.from_file(source, [warning.render(source) for warning in warnings])


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", remedy="name a readable file") from error
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"{path}: is over 1 MiB", remedy="a configuration is far smaller; name the right file")
    try:
        return content.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text", remedy="save it as UTF-8") from None


def _without_unbuilt(data: dict[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """A copy of the document without the keys that are read over, and a warning for each."""
    kept, warnings = copy.deepcopy(data), []
    for *parents, key in NOT_BUILT:
        block: Any = kept
        for parent in parents:
            block = block.get(parent) if isinstance(block, dict) else None
        if isinstance(block, dict) and key in block:
            del block[key]
            warnings.append(Problem((*parents, key), "not built yet, ignored"))
    return kept, warnings


def _settle_performance(data: dict[str, Any]) -> list[Problem]:
    """Turn routing.performance into a policy."""
    routing, where = data.get("routing"), ("routing", "performance")
    if not isinstance(routing, dict) or routing.get("performance") is None:
        return []
    wanted = routing.pop("performance")
    if "policy" in routing:
        return [Problem(where, "cannot be set beside routing.policy", "remove it: the policy decides alone")]
    if not isinstance(wanted, bool):
        return [Problem(where, "must be true or false")]
    routing["policy"] = "fastest" if wanted else "least_busy"
    return []


def _note_power_limit(data: dict[str, Any], warnings: list[Problem]) -> None:
    gpu, key = data.get("gpu"), "power_limit_watts"
    if isinstance(gpu, dict) and gpu.get(key):
        warnings.append(Problem(("gpu", key), "not built yet, ignored", "set it with rocm-smi --setpoweroverdrive"))


def _fill_in(data: dict[str, Any], environ: Mapping[str, str]) -> None:
    """The state's folder, and defaults for blocks whose keys are all left out or commented out."""
    for key in Config.model_fields:
        if data.get(key, ...) is None:
            del data[key]
    node = data.setdefault("node", {})
    if isinstance(node, dict):
        node.setdefault("state_dir", str(paths.state_dir(environ)))


def _stray_keys(data: dict[str, Any]) -> list[Problem]:
    """Keys in open blocks that are neither the core's nor the block that a key of the core names."""
    problems = []
    routing, mesh, models = data.get("routing"), data.get("mesh"), data.get("models")
    if isinstance(routing, dict):
        policy = routing.get("policy", RoutingConfig().policy)
        problems += _strays(routing, RoutingConfig, ("routing",), policy, "routing.policy")
    if isinstance(mesh, dict):
        problems += _stray_in_mesh(mesh)
    if isinstance(listeners := data.get("listeners"), dict):
        problems += [one for name, block in listeners.items() for one in _not_a_block(block, ("listeners", name))]
    for index, model in enumerate(models if isinstance(models, list) else []):
        if isinstance(model, dict):
            engine, where = model.get("engine"), ("models", index)
            problems += _strays(model, ModelConfig, where, engine, f"models[{index}].engine")
    return problems


def _strays(
    block: dict[str, Any], model: type[OpenBlock], where: Location, named: object, naming_key: str
) -> list[Problem]:
    problems = []
    for key in block.keys() - model.model_fields.keys():
        if key == named:
            problems += _not_a_block(block[key], (*where, key))
            continue
        remedy = near_miss(key, [named] if isinstance(named, str) else []) or near_miss(key, model.model_fields)
        if key == "source" and model is ModelConfig:
            problems.append(Problem((*where, key), "not built yet", "give the file's place as path"))
        elif isinstance(block[key], dict) and not remedy:
            remedy = f"options go into the block that {naming_key} names" + (f", {named}" if named else "")
            problems.append(Problem((*where, key), f"unknown key: {naming_key} does not name it", remedy))
        else:
            problems.append(Problem((*where, key), "unknown key", remedy))
    return problems


def _stray_in_mesh(mesh: dict[str, Any]) -> list[Problem]:
    """Any block may be a discovery's: pass 2 knows. A plain value under an unknown key is none."""
    strays = [key for key in mesh.keys() - MeshConfig.model_fields.keys() if not isinstance(mesh[key], dict | None)]
    return [Problem(("mesh", key), "unknown key", near_miss(key, MeshConfig.model_fields)) for key in strays]


def _not_a_block(value: object, where: Location) -> list[Problem]:
    return [] if value is None or isinstance(value, dict) else [Problem(where, "must be a block of keys")]
