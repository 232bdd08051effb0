"""Folders of models and adapters: what mlx_lm needs of them, and what they say of themselves."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from viiwork_core import ConfigError, Spec
from viiwork_mlx.options import MlxOptions

TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")

_OTHER_CACHES = ("kv_lora_rank", "sliding_window", "layer_types", "full_attention_interval", "linear_num_key_heads")
"""Keys of models whose caches do not grow by the same for each token and layer."""


@dataclass(frozen=True, slots=True)
class Model:
    """What a model's folder says. None: it does not."""

    weights: int
    """Bytes of its weights."""

    context: int | None
    """Tokens of its longest context."""

    token_bytes: int | None
    """What one token takes in the KV cache, in 16 bits."""


def model_folder(spec: Spec) -> Path:
    """The folder of the model. Raises ConfigError when `path` is not set."""
    if spec.path is None:
        raise refusal(spec, "path", "is missing", "set it to the folder of an MLX model")
    return spec.path


def check_folders(options: MlxOptions, spec: Spec) -> None:
    """Raise ConfigError unless model, adapter and draft model are folders with all that mlx_lm loads. Blocking."""
    _check(spec, "path", model_folder(spec), "an MLX model", _model_lacks)
    if options.adapter is not None:
        _check(spec, "mlx.adapter", options.adapter, "an adapter", _adapter_lacks)
    if options.draft_model is not None:
        _check(spec, "mlx.draft_model", options.draft_model, "an MLX model", _model_lacks)


def _check(spec: Spec, key: str, folder: Path, what: str, lacks: Callable[[Path], Iterator[str]]) -> None:
    if not folder.is_dir():
        raise refusal(spec, key, f"{folder} is not a folder", f"set it to the folder of {what}")
    if names := ", ".join(lacks(folder)):
        raise refusal(spec, key, f"{folder} has no {names}", f"set it to the complete folder of {what}")


def _model_lacks(folder: Path) -> Iterator[str]:
    if not (folder / "config.json").is_file():
        yield "config.json"
    if not any(folder.glob("model*.safetensors")):
        yield "weights (model*.safetensors)"
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        yield f"tokenizer ({' or '.join(TOKENIZER_FILES)})"


def _adapter_lacks(folder: Path) -> Iterator[str]:
    for name in ("adapter_config.json", "adapters.safetensors"):
        if not (folder / name).is_file():
            yield name


def read_model(folder: Path) -> Model:
    """Read what there is. Blocking; a folder that cannot be read says nothing."""
    try:
        weights = sum(file.stat().st_size for file in folder.glob("model*.safetensors"))
        config = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return Model(0, None, None)  # loading it will say why
    parts = [part for part in _parts(config) if isinstance(part, dict)]
    context = next((found for part in parts if (found := _count(part, "max_position_embeddings"))), None)
    return Model(weights, context, next((found for part in parts if (found := _token_bytes(part))), None))


def _parts(config: object) -> Iterator[object]:
    """The configuration, and that of the language model inside a model of several kinds."""
    yield config
    if isinstance(config, dict):
        yield config.get("text_config")


def _token_bytes(config: Mapping[str, object]) -> int | None:
    if any(config.get(key) for key in _OTHER_CACHES):
        return None
    layers, heads = _count(config, "num_hidden_layers"), _count(config, "num_attention_heads")
    hidden = _count(config, "hidden_size")
    if layers is None or heads is None or hidden is None:
        return None
    width = _count(config, "head_dim") or hidden // heads
    return layers * 2 * (_count(config, "num_key_value_heads") or heads) * width * 2


def _count(config: Mapping[str, object], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def refusal(spec: Spec, key: str, reason: str, remedy: str) -> ConfigError:
    """Why the model cannot be started: `key` is what must be changed."""
    return ConfigError(f"model {spec.model}: {key}: {reason}", remedy=remedy)
