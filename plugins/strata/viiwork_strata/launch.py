"""The command line of a Strata server, and the JSON file that it is started from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from viiwork_core import ConfigError, Launch, Spec, Vendor
from viiwork_strata.options import StrataOptions

DEFAULT_MODEL_NAME = "qwen3.8-flash-next"
"""What a JSON without `model_name` is served as."""


def launch(options: StrataOptions, spec: Spec) -> Launch:
    """Argv and environment of one backend. Pure. Raises ConfigError when the model has no `path`."""
    argv = [options.python, "-m", "serve.server", "--engine", "strata", "--config", str(config_path(spec))]
    argv += ["--host", spec.host, "--port", str(spec.port), *_gpu(spec), *_slot_save_path(spec), *spec.args]
    # PYTHONSAFEPATH keeps the node's working directory out of the module search.
    env = {"PYTHONPATH": str(options.dir), "PYTHONSAFEPATH": "1", "PYTHONUNBUFFERED": "1"}
    return Launch(tuple(argv), env)


def _gpu(spec: Spec) -> list[str]:
    """On AMD the core's pin renumbers the cards from 0; elsewhere Strata overwrites the pin with these numbers."""
    if not spec.gpus:
        return []
    cards = range(len(spec.gpus)) if spec.vendor is Vendor.AMD else spec.gpus
    return ["--gpu", ",".join(str(card) for card in cards)]


def _slot_save_path(spec: Spec) -> list[str]:
    return [] if spec.cache_dir is None else ["--slot-save-path", str(spec.cache_dir)]


def config_path(spec: Spec) -> Path:
    """The JSON file of the model. Raises ConfigError when there is none."""
    if spec.path is None:
        raise _refusal(spec, "path", "is missing", "set it to the Strata JSON file of the model")
    return spec.path


def read_config(spec: Spec) -> Mapping[str, object]:
    """Read the model's JSON file as Strata does (UTF-8, a byte order mark is ignored). Blocking.

    Raises ConfigError when it cannot be read or is not a JSON object.
    """
    path = config_path(spec)
    try:
        config = json.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        reason = f"{path} cannot be read: {error.strerror}"
        raise _refusal(spec, "path", reason, "set it to the Strata JSON file of the model") from error
    except ValueError as error:
        raise _refusal(spec, "path", f"{path} is not JSON: {error}", "correct the file") from error
    if not isinstance(config, dict):
        raise _refusal(spec, "path", f"{path} is not a JSON object", "set it to the Strata JSON file of the model")
    return config


def check_names(spec: Spec, config: Mapping[str, object]) -> None:
    """Raise ConfigError unless the server will answer to the model's name."""
    names = [config.get("model_name", DEFAULT_MODEL_NAME), *_aliases(config)]
    if spec.model in names:
        return
    said = ", ".join(str(name) for name in names)
    remedy = f'set "model_name" to "{spec.model}" in the JSON, or add it to "aliases"'
    raise _refusal(spec, "path", f"{spec.path} serves model_name or aliases {said}, not {spec.model}", remedy)


def _aliases(config: Mapping[str, object]) -> list[object]:
    """A list, or one string with commas."""
    aliases = config.get("aliases", [])
    if isinstance(aliases, str):
        return [alias.strip() for alias in aliases.split(",")]
    return aliases if isinstance(aliases, list) else []


def _refusal(spec: Spec, key: str, reason: str, remedy: str) -> ConfigError:
    return ConfigError(f"model {spec.model}: {key}: {reason}; {remedy}", remedy=remedy)
