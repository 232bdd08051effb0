"""Where a Strata JSON and the model's entry in viiwork's configuration must agree.

Strata would start all the same, and then answer under another name, cut prompts short, queue what viiwork takes for
running, unload the model, or ask for a key. So a disagreement is refused before the start, with the key that it is in.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import TypeGuard

from viiwork_core import ConfigError, Spec
from viiwork_strata.config_file import ConfigFile, refusal
from viiwork_strata.program import unfit

DEFAULT_MODEL_NAME = "qwen3.8-flash-next"
"""What a JSON without `model_name` is served as."""

MOST_PARALLEL = 8
"""Rows of a batch; Strata caps a larger `parallel`."""

_MAX_CONTEXT = "--max-context"
_BATCH = {"--batch", "--slots"}
_NO_SESSIONS = ("--batch", "--slots", "--layer-split", "--peer-device")
_OWN_FLAGS = {
    "--config": "set the model's `path` instead",
    "--host": "leave it out: the server listens on this machine only, and viiwork's api.keys guard it",
    "--port": "leave it out: viiwork chooses the port",
    "--api-key": "leave it out: viiwork asks the server without one, and it would show in the process list",
    "--lazy": "leave it out: viiwork waits until the model is loaded",
    "--idle-unload": "leave it out: a server that unloads its model counts as ill",
}
"""Flags of the server that `models[].args` may not hold."""


def check(spec: Spec, config: ConfigFile) -> None:
    """Raise ConfigError at the first disagreement. Reads the head of the engine's binary, and else nothing."""
    _check_own_args(spec)
    _check_names(spec, config)
    args = _engine_args(spec, config)
    _check_context(spec, config, args)
    _check_parallel(spec, config, args)
    _check_replicas(spec, config)
    _check_loaded(spec, config)
    _check_key(spec, config)
    _check_program(spec, config)


def _check_own_args(spec: Spec) -> None:
    for arg in spec.args:
        flag = arg.partition("=")[0]
        # Strata's parser also takes a flag's beginning for the flag.
        meant = [own for own in _OWN_FLAGS if len(flag) > 2 and flag.startswith("--") and own.startswith(flag)]
        if meant:
            raise refusal(spec, "args", f"holds {meant[0]}", _OWN_FLAGS[meant[0]])


def _check_names(spec: Spec, config: ConfigFile) -> None:
    """The server must answer to the model's name."""
    name = config.values.get("model_name", DEFAULT_MODEL_NAME)
    remedy = f'set "model_name" to "{spec.model}" in the JSON, or add it to "aliases"'
    if not isinstance(name, str):
        raise refusal(spec, "model_name", f"is no text in {config.path}", remedy)
    names = [name, *_aliases(config.values)]
    if spec.model not in names:
        said = ", ".join(names)
        raise refusal(spec, "name", f"{config.path} serves model_name or aliases {said}, and not {spec.model}", remedy)


def _aliases(config: Mapping[str, object]) -> list[str]:
    """A list, or one string with commas."""
    aliases = config.get("aliases")
    listed = aliases.split(",") if isinstance(aliases, str) else aliases
    return [one.strip() for one in listed if isinstance(one, str)] if isinstance(listed, list) else []


def _engine_args(spec: Spec, config: ConfigFile) -> list[str]:
    args = config.values.get("args", [])
    if not isinstance(args, list) or not all(isinstance(arg, str) for arg in args):
        reason = f'"args" in {config.path} is not a list of strings'
        raise refusal(spec, "args", reason, "write each argument of the engine as a string of its own")
    return args


def _check_context(spec: Spec, config: ConfigFile, args: list[str]) -> None:
    """The server reads the first --max-context, the engine the last, and neither knows --max-context=N."""
    remedy = f'write "{_MAX_CONTEXT}", "{spec.context}" once into "args" of the JSON, or change the model\'s context'

    def refused(reason: str) -> ConfigError:
        return refusal(spec, "context", f"{_MAX_CONTEXT} in {config.path} {reason}", remedy)

    if any(arg.startswith(f"{_MAX_CONTEXT}=") for arg in args):
        raise refused("is one argument with its value, which the engine does not know")
    count = args.count(_MAX_CONTEXT)
    if count != 1:
        raise refused("is missing" if not count else f"is there {count} times")
    value = "".join(args[args.index(_MAX_CONTEXT) + 1 :][:1])
    if not (value.isascii() and value.isdigit() and len(value) <= 12):
        raise refused(f"is followed by {value!r}, which is no number" if value else "has no value")
    if int(value) != spec.context:
        raise refused(f"is {int(value)}, and the model's context is {spec.context}")


def _check_parallel(spec: Spec, config: ConfigFile, args: list[str]) -> None:
    """`parallel` counts only where the engine's own arguments do not say how many slots there are."""
    if _BATCH & {arg.partition("=")[0] for arg in args}:
        return
    if spec.parallel > MOST_PARALLEL:
        reason = f"is {spec.parallel}, and Strata runs {MOST_PARALLEL} at most"
        raise refusal(spec, "parallel", reason, f"set it to 1 to {MOST_PARALLEL}")
    value = config.values.get("parallel")
    taken = min(value, MOST_PARALLEL) if _is_whole(value) and value > 1 else 1
    if taken != spec.parallel:
        said = "is not set" if value is None else f"is {value!r}, which Strata takes as {taken},"
        reason = f'is {spec.parallel}, and "parallel" {said} in {config.path}'
        raise refusal(spec, "parallel", reason, "set both to the same number")


def _check_replicas(spec: Spec, config: ConfigFile) -> None:
    value = config.values.get("replicas")
    if value and not (_is_whole(value) and value == 1):
        reason = f"is {value!r} in {config.path}: viiwork starts and watches each backend by itself"
        raise refusal(spec, "replicas", reason, "leave it out, and give the model more `gpus`")


def _check_loaded(spec: Spec, config: ConfigFile) -> None:
    """A server without its model counts as not ready yet, for ever, or as ill."""
    if config.values.get("lazy_load") is True:
        reason = f"is true in {config.path}: the model would never be loaded before its first request"
        raise refusal(spec, "lazy_load", reason, "leave it out")
    idle = config.values.get("idle_unload_s") or 0
    if isinstance(idle, str):
        idle = _number(idle)
    if not isinstance(idle, int | float) or idle != 0:
        reason = f"is not 0 in {config.path}: a server that unloads its model counts as ill"
        raise refusal(spec, "idle_unload_s", reason, "leave it out")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _check_key(spec: Spec, config: ConfigFile) -> None:
    """The key itself is never told."""
    remedy = "leave it out: the server listens on this machine only, and viiwork's api.keys guard it"
    if config.values.get("api_key"):
        raise refusal(spec, "api_key", f"is set in {config.path}, and viiwork asks the server without one", remedy)
    if spec.env.get("STRATA_API_KEY"):
        raise refusal(spec, "env", "holds STRATA_API_KEY, and viiwork asks the server without one", remedy)


def _check_program(spec: Spec, config: ConfigFile) -> None:
    why = unfit(config.values)
    if why:
        raise refusal(spec, "exe", f"{why} ({config.path})", 'set "exe" in the JSON to the engine of this machine')


def sharing_advice(spec: Spec, config: ConfigFile) -> list[str]:
    """Why sessions may not be saved though the model shares them. Newer engines may do some of it, so it is tried."""
    if spec.cache_dir is None:
        return []
    args = _engine_args(spec, config)
    flags = [arg.partition("=")[0] for arg in args]
    found = ["parallel"] if spec.parallel > 1 else []
    found += [flag for flag in dict.fromkeys(flags) if flag in _NO_SESSIONS]
    found += ["--prompt-cache 0"] if ("--prompt-cache", "0") in pairwise(args) else []
    remedy = f"leave it out of {config.path}, or turn kv_share off"
    return [f"kv_share: Strata up to 0.1.42 saves no conversation with {one}; {remedy}" for one in found]


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
