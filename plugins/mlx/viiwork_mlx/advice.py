"""What is likely to go wrong or to be slow with a backend, said before it is started."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction

from viiwork_core import Spec
from viiwork_mlx.folder import Model
from viiwork_mlx.launch import AS_THE_MODEL, CacheArguments, Versions
from viiwork_mlx.options import MlxOptions

TESTED = "0.32"
"""Versions of mlx_lm that this plugin was tried with begin so."""

MIB = 1 << 20
GB = 10**9

WIRED_SHARE = Fraction(3, 4)
"""What macOS lets a GPU wire of a Mac's memory by itself. Not measured here: Metal's recommendedMaxWorkingSetSize is
reported as 96 of 128 GB and 48 of 64 GB, and two thirds on Macs with up to 36 GB. The server itself asks Metal."""


def advice(
    spec: Spec, options: MlxOptions, model: Model, arguments: CacheArguments, versions: Versions | None
) -> Iterator[str]:
    """Sentences for the operator, each with its remedy."""
    if versions is not None:
        yield from _versions(versions)
    if model.context is not None and spec.context > model.context:
        yield (
            f"context {spec.context} is over the {model.context} tokens of the model's own; prompts and answers are "
            "held to the smaller one; lower models[].context"
        )
    alone = "a draft model" if arguments.draft_model is not None else "--kv-bits in args"
    if spec.parallel > 1 and (arguments.draft_model is not None or arguments.kv != AS_THE_MODEL):
        yield f"with {alone} mlx_lm answers one request at a time; set parallel to 1, or leave it out"
    if options.prompt_cache_size < spec.parallel:
        yield (
            f"mlx.prompt_cache_size {options.prompt_cache_size} keeps fewer conversations than parallel "
            f"{spec.parallel} answers at a time, so some are read from their start each turn; raise it"
        )
    memory = min((card.memory_total for card in spec.cards if card.memory_total), default=0) * MIB
    if memory:
        yield from _memory(spec, options, model, arguments, memory)


def _versions(versions: Versions) -> Iterator[str]:
    if not versions.mlx_lm.startswith(f"{TESTED}."):
        yield (
            f"mlx_lm {versions.mlx_lm} was not tried with this plugin; if the server does not start, run: "
            f"pip install 'mlx-lm=={TESTED}.*'"
        )
    if not versions.gpu:
        yield "this MLX has no part for a GPU and works on the processor, which is slow; use it for trials only"


def _memory(spec: Spec, options: MlxOptions, model: Model, arguments: CacheArguments, memory: int) -> Iterator[str]:
    """Weights and caches against what the GPU may have."""
    room = int(memory * WIRED_SHARE) - model.weights
    if room < 0:
        yield (
            f"the weights take {_gb(model.weights)} of {_gb(memory)}, more than macOS leaves a GPU by itself; take a "
            "smaller quantisation, or raise the limit: sudo sysctl iogpu.wired_limit_mb=MIB"
        )
        return
    if model.token_bytes is None or arguments.kv != AS_THE_MODEL:
        return
    context = min(spec.context, model.context or spec.context)
    running = spec.parallel * context * model.token_bytes
    kept = 0 if options.prompt_cache_bytes is None else bytes_of(options.prompt_cache_bytes)
    if running > room:
        yield (
            f"{spec.parallel} requests of {context} tokens may take {_gb(running)}, and {_gb(room)} are left beside "
            "the weights; lower parallel or context"
        )
    elif kept > room:
        yield f"mlx.prompt_cache_bytes is {_gb(kept)}, and {_gb(room)} are left beside the weights; lower it"


def bytes_of(size: int | str) -> int:
    """Bytes of `prompt_cache_bytes`, as mlx_lm reads them."""
    if isinstance(size, int):
        return size
    number, unit = re.fullmatch(r"([\d.]+)\s*([MG]?)B?", size).groups()  # type: ignore[union-attr]  # options check it
    return int(float(number) * {"": 1, "M": 10**6, "G": 10**9}[unit])


def _gb(size: int) -> str:
    return f"{size / GB:.1f} GB"
