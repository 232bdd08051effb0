"""What is likely to go wrong or to be slow with a backend, said before it is started."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from viiwork_core import Accelerator, Spec
from viiwork_llamacpp.arguments import given, swa_full
from viiwork_llamacpp.launch import CACHE_FLAGS, CACHE_VARIABLE, Prepared, cache_ram
from viiwork_llamacpp.model import K_QUANTS, Model
from viiwork_llamacpp.options import LlamaCppOptions
from viiwork_llamacpp.profiles import GFX906, Residence, mismatches, settings

MIB = 1 << 20

EMBEDDERS = frozenset(
    {"bert", "modern-bert", "neo-bert", "nomic-bert", "nomic-bert-moe", "jina-bert-v2", "jina-bert-v3", "eurobert"}
    | {"gemma-embedding", "t5encoder"}
)
"""Architectures that answer with vectors."""

_ROPE = ("--rope-scaling", "--rope-scale", "--rope-freq-base", "--rope-freq-scale", "--yarn-orig-ctx")
_PLACING = (
    *("-ngl", "--gpu-layers", "--n-gpu-layers", "-ot", "--override-tensor", "-cmoe", "--cpu-moe"),
    *("-ncmoe", "--n-cpu-moe", "-dev", "--device", "-ts", "--tensor-split", "-sm", "--split-mode", "--rpc"),
)
"""Who writes one of these has placed the weights by hand."""

_MANY = 0.05
"""Share of the weights from which their type is worth a word."""


def advice(spec: Spec, options: LlamaCppOptions, prepared: Prepared) -> Iterator[str]:
    """Sentences for the operator, each with its remedy."""
    yield from mismatches(spec, options)
    yield from _arguments(spec)
    yield from _cache(spec, options, prepared)
    model = prepared.model or Model()
    if model.unread:
        yield f"{model.unread}; nothing about it can be said before its load"
    else:
        yield from _model(spec, model)
        yield from _cards(spec, options, model)


def _arguments(spec: Spec) -> Iterator[str]:
    if given(spec, "-c", "--ctx-size"):
        yield "args say --ctx-size, which is the sum over all slots, so models[].context does not count; write it there"
    if given(spec, "-kvu", "--kv-unified"):
        yield "with --kv-unified in args each new request clears all idle slots' caches; leave it out"


def _cache(spec: Spec, options: LlamaCppOptions, prepared: Prepared) -> Iterator[str]:
    said = given(spec, *CACHE_FLAGS, variable=CACHE_VARIABLE)
    if prepared.help.cache_ram and prepared.available and not said and not cache_ram(spec, options, prepared):
        free = prepared.available // MIB
        yield f"{free} MiB of RAM are free, too few to keep conversations that leave their slots; free some"


def _model(spec: Spec, model: Model) -> Iterator[str]:
    trained = model.trained_context
    if trained is not None and spec.context > trained and not given(spec, *_ROPE):
        yield (
            f"context {spec.context} is over the {trained} tokens that the model was trained on, and beyond them its "
            "answers decay; lower models[].context, or add --rope-scaling to args where the model allows it"
        )
    if model.window is not None and not swa_full(spec):
        moved = "kv_share does not work with it" if spec.cache_dir else "its caches cannot be shared"
        yield (
            f"the model's layers have a sliding window of {model.window} tokens: {moved}, and a turn that changes what "
            "was said before is read again from its start; add --swa-full to args, which takes more memory"
        )
    if model.recurrent:
        moved = "turn kv_share off for it" if spec.cache_dir else "leave kv_share off for it"
        yield (
            f"the model ({model.architecture}) is recurrent or hybrid: its state cannot be cut back to an earlier "
            f"token, so a changed turn is read again from its start, and its caches do not move; {moved}"
        )
    if model.architecture in EMBEDDERS and not given(spec, "--embedding", "--embeddings", "--rerank", "--reranking"):
        yield f"the model ({model.architecture}) makes embeddings and no text; add --embeddings to args"


def _cards(spec: Spec, options: LlamaCppOptions, model: Model) -> Iterator[str]:
    chosen = settings(spec, options)
    if chosen.name == GFX906:
        yield from _gfx906(spec, model)
    if not spec.gpus or given(spec, *_PLACING) or not model.tensors:
        return
    sizes = [card.memory_total for card in spec.cards if card.memory_total]
    if len(sizes) == len(spec.gpus):
        yield from _memory(spec, options, model, sizes, shared=chosen.weights_in is Residence.RAM)


def _gfx906(spec: Spec, model: Model) -> Iterator[str]:
    if given(spec, "-sm", "--split-mode"):
        yield "args set --split-mode on gfx906 cards, where only layer is known to be right and quick; measure it"
    share = model.share_of(K_QUANTS)
    if share >= _MANY:
        yield (
            f"{share:.0%} of the weights are K-quants, for which gfx906 falls back to slower kernels; a Q4_0 or Q4_1 "
            "file of the model reads prompts at up to twice the rate there"
        )


def _memory(spec: Spec, options: LlamaCppOptions, model: Model, sizes: Sequence[int], *, shared: bool) -> Iterator[str]:
    """Weights only: the cache and the buffers come on top, and what they take depends on the build."""
    moved = model.on_cards
    total = sum(tensor.bytes for tensor in moved)
    largest = max(moved, key=lambda tensor: tensor.bytes, default=None)
    if largest is not None and largest.bytes > min(sizes) * MIB:
        yield (
            f"the tensor {largest.name} takes {_mib(largest.bytes)}, and the smallest card has {min(sizes)} MiB: it "
            "cannot be loaded there; take larger cards, a smaller quantisation, or keep it in RAM with -ot in args"
        )
        return
    weights = options.split_weights or (1.0,) * len(sizes)
    for card, size, part in zip(_named(spec), sizes, weights, strict=False):
        share = int(total * part / sum(weights))
        if share > size * MIB:
            where = "the machine" if shared else card
            yield (
                f"{_mib(share)} of weights would go to {where}, which has {size} MiB; give each backend more cards "
                "(gpus_per_backend), write split_weights, or take a smaller quantisation"
            )


def _named(spec: Spec) -> list[str]:
    def name(card: Accelerator) -> str:
        return f"card {card.index}" + (f" ({card.name})" if card.name else "")

    return [name(card) for card in spec.cards]


def _mib(size: int) -> str:
    return f"{-(-size // MIB)} MiB"
