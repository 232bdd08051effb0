"""A tiny random-weight llama model, as one GGUF file or as one MLX folder: the same model in both.

It exists so that real engines can be tested anywhere in seconds. It loads in well under a second, reads any UTF-8
text at about one token for a plain English word, writes English words, and what it writes depends on the whole
context, so a wrong KV cache shows as other text. The same seed gives the same bytes; another seed gives another model
of the same shape.

    python -m viiwork_core.testing.tiny_model gguf|mlx OUT [--seed N]

Needs numpy, and gguf or safetensors; they are imported when a model is written.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    Matrix = np.ndarray[Any, np.dtype[np.float32]]
    Draw = Callable[[int, int, float], Matrix]

LAYERS = 2
WIDTH = 64
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 32  # engines quantise KV rows in blocks of 32
HIDDEN = 2 * WIDTH
CONTEXT = 32768
NORM_EPSILON = 1e-5
ROPE_BASE = 10000.0
VOCABULARY_MULTIPLE = 32

BEGIN, TURN, TURN_END, PAD = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>"

CHAT_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\n' -}}{%- endif -%}"
)

SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""The pre-tokenizer that llama.cpp calls "default" for byte-level BPE."""

WORD_LIST = """
a about above across after again air all along also always am an and animal another answer any apple are around as
ask assistant at away back be because bed been before began being below best better big bird black blue boat body
book both boy bread bridge bring brother build but by cache call came can car carry cat city clock close cloud cold
color come could count country cup cut dark day did different do does dog done door down draw drink dry each ear
early earth east easy eat end engine enough even evening ever every example eye face fall family far farm fast
father few field find fire first fish five floor flower follow food foot for form found four from full game garden
gave get girl give go gold good got grass great green ground group grow had half hand happy hard has have he head
hear heart help her here high hill him his hold home horse hot hour house how hundred idea if in into iron is island
it its just keep kind king knew know lake land large last late laugh leaf learn left less let letter life light like
line list little live long look made make man many map may me mean memory might mile milk model money moon more
morning most mother mountain move much music must my name near need never new next night no north not now number of
off old on once one only open or other our out over own page paper part people picture place plant play point prompt
question quick rain read red rest right river road rock room round run said sail same saw say school sea second see
seed seem sentence set seven she ship short should show side silver sing sister six sleep slot slow small snow so
some song soon sound south stand star start stay stone stop story street strong such summer sun system table take
talk tall tell ten than that the their them then there these they thing think third this those thought three through
time to today together token told too took top town travel tree true try turn two under until up us use user very
voice wait walk wall want warm was watch water way we weather week well went were west what wheel when where which
while white who why will wind window winter with without wood word work world would write year yellow yes you young
your
"""
WORDS = tuple(WORD_LIST.split())


@dataclass(frozen=True)
class Vocabulary:
    """A byte-level BPE: 256 bytes, then each prefix of each word, then control tokens, then padding."""

    tokens: tuple[str, ...]
    merges: tuple[tuple[str, str], ...]
    ordinary: int
    """How many tokens, from 0, are plain text."""

    control: dict[str, int]
    words: tuple[int, ...]
    """Ids of the whole words with a leading space: what the model likes to write."""


def byte_alphabet() -> tuple[str, ...]:
    """The printable character that stands for each byte in a byte-level BPE, as GPT-2 has it."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    spare = iter(range(256, 512))
    return tuple(chr(byte if byte in printable else next(spare)) for byte in range(256))


def build_vocabulary() -> Vocabulary:
    """Make the vocabulary; it is the same for every seed."""
    alphabet = byte_alphabet()
    spaced = [alphabet[32] + word for word in WORDS]
    merges: dict[str, tuple[str, str]] = {}
    for text in (*spaced, *WORDS, *(word.capitalize() for word in WORDS)):
        for end in range(2, len(text) + 1):
            merges.setdefault(text[:end], (text[: end - 1], text[end - 1]))
    tokens = [*alphabet, *merges]
    ordinary = len(tokens)
    tokens += [BEGIN, TURN, TURN_END, PAD]
    control = {name: tokens.index(name) for name in tokens[ordinary:]}
    tokens += [f"<|unused{number}|>" for number in range(-len(tokens) % VOCABULARY_MULTIPLE)]
    words = tuple(tokens.index(text) for text in spaced)
    return Vocabulary(tuple(tokens), tuple(merges.values()), ordinary, control, words)


def weights(vocabulary: Vocabulary, seed: int) -> Iterator[tuple[str, Matrix]]:
    """The tensors, in Hugging Face's names and rope layout, drawn in this order from `seed`.

    Width 0 of the residual stream is a constant that no layer writes to, so column 0 of the output matrix is a bias
    for each token: whole words get a high one, and random weights write readable text.
    """
    import numpy as np

    rng = np.random.default_rng(seed)

    def draw(rows: int, columns: int, gain: float) -> Matrix:
        return np.asarray(rng.standard_normal((rows, columns)) * (gain / columns**0.5), np.float32)

    size = len(vocabulary.tokens)
    ones = np.ones(WIDTH, np.float32)
    embedding = draw(size, WIDTH, WIDTH**0.5)
    embedding[:, 0] = 2.0
    yield "model.embed_tokens.weight", embedding
    for layer in range(LAYERS):
        for name, matrix in layer_weights(draw):
            yield f"model.layers.{layer}.{name}.weight", ones if matrix is None else matrix
    yield "model.norm.weight", ones
    output = draw(size, WIDTH, 3.0)
    output[:, 0] = -12.0
    output[list(vocabulary.words), 0] = 8.0
    yield "lm_head.weight", output


def layer_weights(draw: Draw) -> Iterator[tuple[str, Matrix | None]]:
    """One layer's tensors; None stands for a norm of ones. What writes to the residual stream leaves width 0 alone."""
    yield "input_layernorm", None
    yield "self_attn.q_proj", draw(HEADS * HEAD_DIM, WIDTH, 1.5)
    yield "self_attn.k_proj", draw(KV_HEADS * HEAD_DIM, WIDTH, 1.5)
    yield "self_attn.v_proj", draw(KV_HEADS * HEAD_DIM, WIDTH, 1.0)
    attention = draw(WIDTH, HEADS * HEAD_DIM, 2.0)
    attention[0, :] = 0.0
    yield "self_attn.o_proj", attention
    yield "post_attention_layernorm", None
    yield "mlp.gate_proj", draw(HIDDEN, WIDTH, 1.0)
    yield "mlp.up_proj", draw(HIDDEN, WIDTH, 1.0)
    down = draw(WIDTH, HIDDEN, 1.0)
    down[0, :] = 0.0
    yield "mlp.down_proj", down


GGUF_NAMES = (
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("model.layers", "blk"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
)


def gguf_tensor(name: str, matrix: Matrix) -> tuple[str, Matrix]:
    """Give a tensor llama.cpp's name and rope layout: it turns neighbouring pairs, Hugging Face turns halves."""
    if "q_proj" in name or "k_proj" in name:
        heads = matrix.shape[0] // HEAD_DIM
        matrix = matrix.reshape(heads, 2, HEAD_DIM // 2, -1).swapaxes(1, 2).reshape(matrix.shape).copy()
    for ours, theirs in GGUF_NAMES:
        name = name.replace(ours, theirs)
    return name, matrix


def write_gguf(path: Path, *, seed: int = 1) -> Path:
    """Write the model as one GGUF file of about 2 MB and return its path."""
    import gguf

    vocabulary = build_vocabulary()
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(f"tiny-random-seed{seed}")
    writer.add_block_count(LAYERS)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_layer_norm_rms_eps(NORM_EPSILON)
    writer.add_vocab_size(len(vocabulary.tokens))
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    add_gguf_tokenizer(writer, vocabulary)
    for name, matrix in weights(vocabulary, seed):
        writer.add_tensor(*gguf_tensor(name, matrix))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_gguf_tokenizer(writer: Any, vocabulary: Vocabulary) -> None:
    """Describe the vocabulary and the chat template to a GGUF writer."""
    import gguf

    unused = len(vocabulary.tokens) - vocabulary.ordinary - len(vocabulary.control)
    kinds = [gguf.TokenType.NORMAL] * vocabulary.ordinary + [gguf.TokenType.CONTROL] * len(vocabulary.control)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(kinds + [gguf.TokenType.UNUSED] * unused)
    writer.add_token_merges([f"{left} {right}" for left, right in vocabulary.merges])
    writer.add_bos_token_id(vocabulary.control[BEGIN])
    writer.add_eos_token_id(vocabulary.control[TURN_END])
    writer.add_eot_token_id(vocabulary.control[TURN_END])
    writer.add_pad_token_id(vocabulary.control[PAD])
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def write_mlx(folder: Path, *, seed: int = 1) -> Path:
    """Write the model as a folder that mlx_lm loads, about 2 MB, and return its path."""
    from safetensors.numpy import save_file

    vocabulary = build_vocabulary()
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in mlx_documents(vocabulary).items():
        (folder / name).write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    save_file(dict(weights(vocabulary, seed)), folder / "model.safetensors", metadata={"format": "mlx"})
    return folder


def mlx_documents(vocabulary: Vocabulary) -> dict[str, dict[str, Any]]:
    """The JSON files of a Hugging Face model folder, by name."""
    ids = {"bos_token_id": vocabulary.control[BEGIN], "eos_token_id": vocabulary.control[TURN_END]}
    return {
        "config.json": {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": WIDTH,
            "num_hidden_layers": LAYERS,
            "intermediate_size": HIDDEN,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "rms_norm_eps": NORM_EPSILON,
            "rope_theta": ROPE_BASE,
            "vocab_size": len(vocabulary.tokens),
            "max_position_embeddings": CONTEXT,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
            "torch_dtype": "float32",
            **ids,
        },
        "generation_config.json": ids,
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BEGIN,
            "eos_token": TURN_END,
            "pad_token": PAD,
            "model_max_length": CONTEXT,
            "clean_up_tokenization_spaces": False,
            "add_bos_token": False,
            "chat_template": CHAT_TEMPLATE,
        },
        "tokenizer.json": tokenizer_document(vocabulary),
    }


def tokenizer_document(vocabulary: Vocabulary) -> dict[str, Any]:
    """The vocabulary as the `tokenizers` library reads it."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    split = {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False}
    plain = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    special = list(enumerate(vocabulary.tokens))[vocabulary.ordinary :]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": text, "special": True, **plain} for number, text in special],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {text: number for number, text in enumerate(vocabulary.tokens[: vocabulary.ordinary])},
            "merges": [f"{left} {right}" for left, right in vocabulary.merges],
        },
    }


def main() -> None:
    """Write one model, as the command line says."""
    parser = argparse.ArgumentParser(prog="python -m viiwork_core.testing.tiny_model", description="A tiny test model.")
    parser.add_argument("kind", choices=("gguf", "mlx"))
    parser.add_argument("out", type=Path, help="the file (gguf) or the folder (mlx) to write")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    write = write_gguf if given.kind == "gguf" else write_mlx
    print(write(given.out, seed=given.seed))


if __name__ == "__main__":
    main()
