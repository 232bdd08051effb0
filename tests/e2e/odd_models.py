"""Tiny models of which llama-server restores a cache with success and then uses nothing: as one GGUF file each.

Their weights and words are those of the tiny model; only the layers differ. A window or a state of its own is what
keeps a cache from being cut back, or from being known again after a restore.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from viiwork_core.testing import tiny_model as tiny

if TYPE_CHECKING:
    from viiwork_core.testing.tiny_model import Matrix

WINDOW = 512
"""Tokens that a layer with a sliding window sees."""

SLIDING_LAYERS = 6
"""Of gemma3: each sixth layer sees everything."""

STATE_HEAD = tiny.WIDTH // tiny.HEADS
"""Width of a head of lfm2: all of them are as wide as the model."""

STEPS = 3
"""Tokens that a short convolution of lfm2 looks at."""


def write_sliding(path: Path) -> Path:
    """A model with sliding-window layers (gemma3), of about 3 MB."""
    writer = _writer(path, "gemma3", layers=SLIDING_LAYERS, head=tiny.HEAD_DIM)
    writer.add_head_count_kv(tiny.KV_HEADS)
    writer.add_sliding_window(WINDOW)
    return _written(writer, path, _sliding_tensors())


def write_hybrid(path: Path) -> Path:
    """A hybrid model (lfm2): one layer with attention, and one that keeps a state. About 2 MB."""
    writer = _writer(path, "lfm2", layers=tiny.LAYERS, head=STATE_HEAD)
    writer.add_head_count_kv([0, tiny.KV_HEADS])
    writer.add_shortconv_l_cache(STEPS)
    return _written(writer, path, _hybrid_tensors())


def _writer(path: Path, architecture: str, *, layers: int, head: int) -> Any:
    import gguf

    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name(f"tiny-random-{architecture}")
    writer.add_block_count(layers)
    writer.add_context_length(tiny.CONTEXT)
    writer.add_embedding_length(tiny.WIDTH)
    writer.add_feed_forward_length(tiny.HIDDEN)
    writer.add_head_count(tiny.HEADS)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(tiny.ROPE_BASE)
    writer.add_layer_norm_rms_eps(tiny.NORM_EPSILON)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    return writer


def _written(writer: Any, path: Path, tensors: Iterator[tuple[str, Matrix]]) -> Path:
    vocabulary = tiny.build_vocabulary()
    writer.add_vocab_size(len(vocabulary.tokens))
    tiny.add_gguf_tokenizer(writer, vocabulary)
    for name, matrix in tensors:
        writer.add_tensor(name, matrix)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _layers(count: int) -> Iterator[tuple[str, Matrix]]:
    """The tiny model's tensors, its second layer as often as is needed."""
    for name, matrix in tiny.weights(tiny.build_vocabulary(), 1):
        yield name, matrix
        if name.startswith("model.layers.1."):
            for layer in range(tiny.LAYERS, count):
                yield name.replace(".1.", f".{layer}.", 1), matrix


def _named(name: str) -> str:
    for ours, theirs in tiny.GGUF_NAMES:
        name = name.replace(ours, theirs)
    return name


def _sliding_tensors() -> Iterator[tuple[str, Matrix]]:
    import numpy as np

    for name, matrix in _layers(SLIDING_LAYERS):
        # This kind of model scales its embeddings up again.
        yield _named(name), matrix / np.float32(tiny.WIDTH**0.5) if "embed" in name else matrix
    for layer in range(SLIDING_LAYERS):
        # Sharp attention: what is written depends on the context.
        yield f"blk.{layer}.attn_q_norm.weight", np.full(tiny.HEAD_DIM, 3, np.float32)
        yield f"blk.{layer}.attn_k_norm.weight", np.full(tiny.HEAD_DIM, 2, np.float32)
        for norm in ("post_attention_norm", "post_ffw_norm"):
            yield f"blk.{layer}.{norm}.weight", np.ones(tiny.WIDTH, np.float32)


def _hybrid_tensors() -> Iterator[tuple[str, Matrix]]:
    import numpy as np

    def drawn(rows: int, columns: int) -> Matrix:
        return np.asarray(random.standard_normal((rows, columns)) / columns**0.5, np.float32)

    random = np.random.default_rng(2)
    for name, matrix in _layers(tiny.LAYERS):
        if "layers.0.self_attn" not in name:
            yield _named(name).replace("output_norm", "token_embd_norm"), _narrowed(name, matrix)
    for norm in ("attn_q_norm", "attn_k_norm"):
        yield f"blk.1.{norm}.weight", np.full(STATE_HEAD, 2, np.float32)
    out = drawn(tiny.WIDTH, tiny.WIDTH)
    out[0, :] = 0.0  # no layer writes to width 0
    yield "blk.0.shortconv.conv.weight", drawn(tiny.WIDTH, STEPS)
    yield "blk.0.shortconv.in_proj.weight", drawn(3 * tiny.WIDTH, tiny.WIDTH)
    yield "blk.0.shortconv.out_proj.weight", out


def _narrowed(name: str, matrix: Matrix) -> Matrix:
    """The attention's tensors, cut to the heads of lfm2."""
    if "o_proj" in name:
        return matrix[:, : tiny.HEADS * STATE_HEAD].copy()
    heads = {"q_proj": tiny.HEADS, "k_proj": tiny.KV_HEADS, "v_proj": tiny.KV_HEADS}
    width = next((count * STATE_HEAD for part, count in heads.items() if part in name), len(matrix))
    return matrix[:width]
