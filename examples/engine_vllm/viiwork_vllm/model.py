"""The folder of a model, as far as it can be judged before vLLM loads it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

from viiwork_core import ConfigError, Spec

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "tekken.json", "vocab.json")
WEIGHTS = ("*.safetensors", "*.bin", "*.pt")


def refusal(spec: Spec, key: str, reason: str, remedy: str) -> ConfigError:
    """Why the model cannot be started: `key` is what must be changed."""
    return ConfigError(f"models[{spec.model}].{key}: {reason}", remedy=remedy)


def model_folder(spec: Spec) -> Path:
    """The folder of the model. Raises ConfigError when `path` is not set."""
    if spec.path is None:
        raise refusal(spec, "path", "is missing", "set it to the folder of a Hugging Face model")
    return spec.path


def check_folder(spec: Spec) -> None:
    """Raises ConfigError unless `path` is a folder with all that vLLM loads. Blocking."""
    folder = model_folder(spec)
    if not folder.is_dir():
        raise refusal(spec, "path", f"{folder} is not a folder", "set it to the folder of a Hugging Face model")
    if lacks := ", ".join(_lacks(folder)):
        raise refusal(spec, "path", f"{folder} has no {lacks}", "fetch the whole model, or correct the path")
    read_config(spec)


def _lacks(folder: Path) -> Iterator[str]:
    if not (folder / "config.json").is_file():
        yield "config.json"
    if not any((folder / name).is_file() for name in TOKENIZERS):
        yield f"tokenizer ({' or '.join(TOKENIZERS)})"
    if not any(any(folder.glob(pattern)) for pattern in WEIGHTS):
        yield f"weights ({' or '.join(WEIGHTS)})"


def read_config(spec: Spec) -> Mapping[str, object]:
    """What config.json says of the model; of one with several parts, what it says of the text. Blocking.

    Raises ConfigError when it cannot be read, or is not a JSON object.
    """
    path = model_folder(spec) / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise refusal(spec, "path", f"{path} is not JSON: {error}", "fetch the file again") from error
    if not isinstance(config, dict):
        raise refusal(spec, "path", f"{path} is not a JSON object", "fetch the file again")
    text = config.get("text_config")
    return text if isinstance(text, dict) else config


def advice(spec: Spec, config: Mapping[str, object]) -> Iterator[str]:
    """What vLLM is likely to refuse after it has been started; `args` may change both."""
    heads, cards = config.get("num_attention_heads"), len(spec.gpus)
    if isinstance(heads, int) and cards > 1 and heads % cards:
        yield (
            f"{spec.model} has {heads} attention heads, and {cards} cards cannot share them evenly: "
            "set gpus_per_backend to a number that divides the heads"
        )
    longest = config.get("max_position_embeddings")
    if isinstance(longest, int) and spec.context > longest and not config.get("rope_scaling"):
        yield (
            f"{spec.model} was made for {longest} tokens, and context is {spec.context}: "
            "lower context, or tell vLLM in args how to stretch it"
        )
