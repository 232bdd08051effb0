"""The command line of the MLX server, and what is checked before it is started."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from viiwork_core import Context, EngineRefused, Launch, Spec
from viiwork_mlx.folder import model_folder, refusal
from viiwork_mlx.options import MlxOptions

INSTALL = "pip install viiwork-mlx mlx-lm" if sys.platform == "darwin" else "pip install 'viiwork-mlx[cpu]'"

AS_THE_MODEL = "as the model"

GPU_PARTS = ("mlx-metal", "mlx-cuda-12", "mlx-cuda-13")

VERSIONS_SCRIPT = """
import importlib.metadata, json
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
names = ("viiwork-mlx", "mlx", "mlx-lm", "mlx-metal", "mlx-cuda-12", "mlx-cuda-13")
print(json.dumps({name: version(name) for name in names}))
"""


@dataclass(frozen=True, slots=True)
class Versions:
    """What is installed for the interpreter that runs MLX."""

    mlx: str
    mlx_lm: str
    gpu: bool
    """Whether MLX has the part that works on a GPU: Metal, or CUDA."""


OURS = {
    "--model": "write models[].path",
    "--model-name": "it is models[].name",
    "--host": "the server listens on this machine only",
    "--port": "a port is drawn for each start",
    "--parallel": "write models[].parallel",
    "--decode-concurrency": "write models[].parallel",
    "--context": "write models[].context",
    "--kv-dir": "write models[].kv_share",
    "--pipeline": "a backend is one process",
}
"""Flags that are not the operator's, and what to do instead."""

_SHORTEST = 5
"""Letters from which an abbreviation is taken for one of them: argparse knows `--mod` as `--model`."""


def launch(options: MlxOptions, context: Context, spec: Spec) -> Launch:
    """Argv and environment of one backend. Pure. Raises ConfigError when the model has no `path`, or `args` what is not
    the operator's to say."""
    _check_arguments(spec)
    # -P keeps the node's working directory out of the module search. WARNING: the default logs four lines a request.
    argv = [options.python, "-P", "-m", "viiwork_mlx.server", "--model", str(model_folder(spec))]
    argv += ["--model-name", spec.model, "--host", spec.host, "--port", str(spec.port)]
    argv += ["--parallel", str(spec.parallel), "--prompt-cache-size", str(options.prompt_cache_size)]
    # mlx_lm's own limits: none for the context, and 512 tokens for an answer whose request sets none.
    argv += ["--context", str(spec.context), "--max-tokens", str(spec.context), "--log-level", "WARNING"]
    if options.prompt_cache_bytes is not None:
        argv += ["--prompt-cache-bytes", str(options.prompt_cache_bytes)]
    if options.adapter is not None:
        argv += ["--adapter-path", str(options.adapter)]
    if options.draft_model is not None:
        argv += ["--draft-model", str(options.draft_model)]
    if spec.cache_dir is not None:
        argv += ["--kv-dir", str(spec.cache_dir)]
    # Nothing is fetched. The folder need only exist: huggingface_hub breaks without one.
    env = {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(context.state_dir)}
    return Launch((*argv, *spec.args), env)


def _check_arguments(spec: Spec) -> None:
    for word in spec.args:
        flag = word.partition("=")[0]
        for ours, instead in OURS.items():
            if flag == ours or (len(flag) >= _SHORTEST and ours.startswith(flag)):
                raise refusal(spec, "args", f"{ours} is set by viiwork", f"leave it out; {instead}")


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
    return Versions(mlx, mlx_lm, gpu=any(found.get(name) for name in GPU_PARTS))


def _last_object(text: str) -> dict[str, object]:
    """The JSON object in the last line; empty when there is none."""
    try:
        value = json.loads(text.strip().rpartition("\n")[2])
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True)
class CacheArguments:
    """What decides what a cache file means, of the options and the operator's arguments."""

    kv: str
    """Type of the KV cache, in words that are equal when the types are."""

    adapter: Path | None
    draft_model: Path | None


def cache_arguments(options: MlxOptions, spec: Spec) -> CacheArguments:
    """Read them as mlx_lm does. Raises ConfigError for values that it would refuse."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    parser.add_argument("--kv-bits", type=int)
    parser.add_argument("--kv-group-size", type=int, default=64)
    parser.add_argument("--quantized-kv-start", type=int, default=5000)
    parser.add_argument("--adapter-path", type=Path, default=options.adapter)
    parser.add_argument("--draft-model", type=Path, default=options.draft_model)
    try:
        found, _ = parser.parse_known_args(spec.args)
    except argparse.ArgumentError as error:
        raise refusal(spec, "args", str(error), "see mlx_lm.server --help") from error
    kv = AS_THE_MODEL
    if found.kv_bits is not None:
        kv = f"{found.kv_bits} bits in groups of {found.kv_group_size} from token {found.quantized_kv_start}"
    return CacheArguments(kv, found.adapter_path, found.draft_model)
