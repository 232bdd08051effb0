"""The command line of the MLX server, and what is checked before it is started."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from viiwork_core import ConfigError, Context, EngineRefused, Launch, Spec
from viiwork_mlx.options import MlxOptions

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")

INSTALL = "pip install viiwork-mlx mlx-lm" if sys.platform == "darwin" else "pip install 'viiwork-mlx[cpu]'"

VERSIONS_SCRIPT = """
import importlib.metadata, json
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
print(json.dumps({name: version(name) for name in ("viiwork-mlx", "mlx", "mlx-lm")}))
"""


@dataclass(frozen=True, slots=True)
class Versions:
    """What is installed for the interpreter that runs MLX."""

    mlx: str
    mlx_lm: str


def launch(options: MlxOptions, context: Context, spec: Spec) -> Launch:
    """Argv and environment of one backend. Pure. Raises ConfigError when the model has no `path`."""
    # -P keeps the node's working directory out of the module search. WARNING: the default logs four lines a request.
    argv = [options.python, "-P", "-m", "viiwork_mlx.server", "--model", str(model_folder(spec))]
    argv += ["--model-name", spec.model, "--host", spec.host, "--port", str(spec.port)]
    argv += ["--parallel", str(spec.parallel), "--prompt-cache-size", str(options.prompt_cache_size)]
    argv += ["--log-level", "WARNING"]
    if options.prompt_cache_bytes is not None:
        argv += ["--prompt-cache-bytes", str(options.prompt_cache_bytes)]
    if spec.cache_dir is not None:
        argv += ["--kv-dir", str(spec.cache_dir)]
    # Nothing is fetched. The folder need only exist: huggingface_hub breaks without one.
    env = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(context.state_dir)}
    return Launch((*argv, *spec.args), env)


def model_folder(spec: Spec) -> Path:
    """The folder of the model. Raises ConfigError when `path` is not set."""
    if spec.path is None:
        raise refusal(spec, "path", "is missing", "set it to the folder of an MLX model")
    return spec.path


def check_folder(spec: Spec) -> None:
    """Raise ConfigError unless `path` is a folder with all that mlx_lm loads. Blocking."""
    folder = model_folder(spec)
    lacks = ", ".join(_lacks(folder)) if folder.is_dir() else ""
    if not folder.is_dir():
        raise refusal(spec, "path", f"{folder} is not a folder", "set it to the folder of an MLX model")
    if lacks:
        raise refusal(spec, "path", f"{folder} has no {lacks}", "set it to the complete folder of an MLX model")


def _lacks(folder: Path) -> Iterator[str]:
    if not (folder / "config.json").is_file():
        yield "config.json"
    if not any(folder.glob("model*.safetensors")):
        yield "weights (model*.safetensors)"
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        yield f"tokenizer ({' or '.join(TOKENIZER_FILES)})"


async def read_versions(options: MlxOptions, context: Context, spec: Spec) -> Versions:
    """Ask the interpreter what it has. Raises ConfigError when it does not run or lacks a part."""
    try:
        output = await context.run_command([options.python, "-P", "-c", VERSIONS_SCRIPT])
    except EngineRefused as error:
        raise refusal(spec, "mlx.python", error.message, "set it to a Python that has mlx_lm") from error
    found = _last_object(output.text) if output.returncode == 0 else {}
    mlx, mlx_lm = found.get("mlx"), found.get("mlx-lm")
    if not isinstance(mlx, str) or not isinstance(mlx_lm, str) or not found.get("viiwork-mlx"):
        lacks = ", ".join(name for name in ("viiwork-mlx", "mlx", "mlx-lm") if not found.get(name))
        raise refusal(spec, "mlx.python", f"{options.python} has no {lacks}", f"with that Python, run: {INSTALL}")
    return Versions(mlx, mlx_lm)


def _last_object(text: str) -> dict[str, object]:
    """The JSON object in the last line; empty when there is none."""
    try:
        value = json.loads(text.strip().rpartition("\n")[2])
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True)
class CacheArguments:
    """The operator's arguments that decide what a cache file means."""

    kv: str
    """Type of the KV cache, in words that are equal when the types are."""

    adapter: Path | None
    draft_model: Path | None


def cache_arguments(spec: Spec) -> CacheArguments:
    """Read them as mlx_lm does. Raises ConfigError for values that it would refuse."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--kv-bits", type=int)
    parser.add_argument("--kv-group-size", type=int, default=64)
    parser.add_argument("--quantized-kv-start", type=int, default=5000)
    parser.add_argument("--adapter-path", type=Path)
    parser.add_argument("--draft-model", type=Path)
    try:
        found, _ = parser.parse_known_args(spec.args)
    except argparse.ArgumentError as error:
        raise refusal(spec, "args", str(error), "see mlx_lm.server --help") from error
    kv = "as the model"
    if found.kv_bits is not None:
        kv = f"{found.kv_bits} bits in groups of {found.kv_group_size} from token {found.quantized_kv_start}"
    return CacheArguments(kv, found.adapter_path, found.draft_model)


def refusal(spec: Spec, key: str, reason: str, remedy: str) -> ConfigError:
    """One sentence that names the model, the key, what is wrong and what to do."""
    return ConfigError(f"model {spec.model}: {key}: {reason}; {remedy}", remedy=remedy)
