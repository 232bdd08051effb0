"""Whether a folder is a model for mlx_lm, and what it says of itself."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from viiwork_core import ConfigError, FolderListing, FoundModel
from viiwork_mlx.folder import TOKENIZER_FILES, read_model
from viiwork_mlx.launch import INSTALL
from viiwork_mlx.options import MlxOptions

LARGEST = 1 << 24
"""Bytes of a JSON file that is read: an index of weights names each tensor, tens of thousands in the largest models."""

_CONFIG, _INDEX = "config.json", "model.safetensors.index.json"

_QUANTISATION = re.compile(r"([-._](mlx|mxfp4|nvfp4|dwq\w*|\d+bit\w*|bf16|fp16|q\d\w*))+$", re.IGNORECASE)
"""What names of such folders end with: 4bit, 8bit-DWQ, bf16."""

_SNAPSHOTS = "snapshots"
"""In the cache of huggingface_hub a model lies in models--OWNER--NAME/snapshots/REVISION."""


def recognize(folder: FolderListing) -> Iterator[FoundModel]:
    """The folder itself, if it holds a model's weights and its configuration."""
    weights = {name: size for name, size in folder.files.items() if _is_weights(name)}
    if not weights or not 0 < folder.files.get(_CONFIG, 0) <= LARGEST:
        return
    config = _object(folder, _CONFIG)
    if not isinstance(config.get("model_type"), str):
        return  # a part of something else, such as an image generator's
    name, size = called(folder.path), sum(weights.values())
    if problem := _lacks(folder):
        yield FoundModel(name, folder.path, size, problem=f"{problem}; fetch the whole folder")
        return
    model = read_model(folder.path)
    yield FoundModel(name, folder.path, size, _kind(config), model.context, model.token_bytes)


def _is_weights(name: str) -> bool:
    return name.startswith("model") and name.endswith(".safetensors")


def _lacks(folder: FolderListing) -> str:
    if folder.files.keys().isdisjoint(TOKENIZER_FILES):
        return f"its tokenizer ({' or '.join(TOKENIZER_FILES)}) is missing"
    parts = _object(folder, _INDEX).get("weight_map")
    named = {one for one in parts.values() if isinstance(one, str)} if isinstance(parts, dict) else set[str]()
    missing = sorted(named - folder.files.keys())
    more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"{_plain(missing[0])} is missing{more}" if missing else ""


def _object(folder: FolderListing, name: str) -> Mapping[str, object]:
    """Empty: there is none that can be read."""
    if not 0 < folder.files.get(name, 0) <= LARGEST:
        return {}
    try:
        value = json.loads((folder.path / name).read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _kind(config: Mapping[str, object]) -> str:
    quantisation = config.get("quantization")
    bits = quantisation.get("bits") if isinstance(quantisation, dict) else None
    return _plain(str(config["model_type"])) + (f" {bits} bit" if isinstance(bits, int) else "")


def _plain(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text[:80])


def called(folder: Path) -> str:
    """A name for clients, of the folder's."""
    name = folder.name
    if folder.parent.name == _SNAPSHOTS:
        name = folder.parent.parent.name.rpartition("--")[2]
    plain = _QUANTISATION.sub("", name) or name
    return re.sub(r"[^a-z0-9._-]+", "-", plain.lower()).strip("-") or "model"


def program() -> str:
    """The Python that has mlx_lm. Raises ConfigError when this one has not."""
    if importlib.util.find_spec("mlx_lm") is None:
        raise ConfigError("this Python has no mlx_lm", remedy=f"run: {INSTALL}")
    return MlxOptions().python
